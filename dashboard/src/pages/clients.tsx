/** Clients: the list `#/clients`, and one of them `#/clients/ID`. */

import { place } from "../router";
import { OneClient } from "./clients/one";
import { ClientList } from "./clients/list";

export default function Page() {
  const [, id, tab] = place.value.path;
  return id === undefined ? <ClientList /> : <OneClient key={id} id={id} tab={tab} />;
}
