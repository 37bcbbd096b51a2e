// Runs oidc-provider for test_oidc_provider.py: `node oidc_provider.mjs PORT REDIRECT_URI LOGOUT_URI`. Prints a line when it listens.
import { Provider } from "oidc-provider";

const [port, redirect, logout] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const groups = { root: ["mqtt-admins", "staff"], olga: ["night-shift"], nobody: ["staff"] };

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "taipan-dashboard",
      client_secret: "s3cret: of the client",
      redirect_uris: [redirect],
      post_logout_redirect_uris: [logout],
    },
  ],
  claims: { openid: ["sub"], profile: ["preferred_username"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "profile", "email", "groups"],
  pkce: { required: () => true },
  // The ID token has all claims if the client asks for it; otherwise the userinfo endpoint has them.
  conformIdTokenClaims: process.env.CLAIMS !== "id_token",
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id, groups: groups[id] ?? [], email: `${id}@example.org`, email_verified: true }),
  }),
  cookies: { keys: ["a key of the tests"] },
});
provider.listen(Number(port), "127.0.0.1", () => console.log(`listening ${issuer}`));
