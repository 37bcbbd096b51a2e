/** Requests about users of the store. */

import { ApiError, type Json, open, part, send } from "../../api";
import { texts } from "../../texts/access";

export type UserKind = "username" | "clientid";

/** The answer of the API has what it made beside `data`. */
interface Added {
  data?: Record<string, string>;
  passwords?: Record<string, string>;
  warning?: string;
}

/** `secret`: the password that the node made. `warning`: what it says about other clients. */
export interface Done {
  secret: string | undefined;
  warning: string | undefined;
}

async function write(method: string, path: string, body: Record<string, Json | undefined>): Promise<Added> {
  return (await open(await send(method, path, { body }), method, path)) as Added;
}

/** `given`: one of `generate` and `password`, and `is_superuser`. */
export async function createUser(kind: UserKind, name: string, given: Record<string, Json>): Promise<Done> {
  let answer: Added;
  if (kind === "username") {
    answer = await write("POST", "/auth_user", { login: name, is_superuser: false, ...given });
    if (answer.data?.[name] !== "ok") throw new ApiError(400, 113, texts.users.existed, "POST", "/auth_user");
  } else answer = await write("POST", "/auth_clientid", { clientid: name, ...given });
  return { secret: answer.passwords?.[name], warning: answer.warning };
}

export async function updateUser(kind: UserKind, name: string, given: Record<string, Json>): Promise<Done> {
  const path = kind === "username" ? "/auth_user" : "/auth_clientid";
  const answer = await write("PUT", `${path}/${part(name)}`, given);
  return { secret: answer.passwords?.[name], warning: answer.warning };
}
