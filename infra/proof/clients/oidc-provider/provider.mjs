// An identity provider for tests: oidc-provider with one user, ada, whose password is lovelace.
//
//   node provider.mjs --port 4000 --callback http://127.0.0.1:8080/callback --tokens jwt
//
// Dormouse is registered with the id dormouse and the secret secret; it signs users in at the callback.
// Other clients register themselves. A client that asks for a token for a URL gets one whose audience is
// that URL: a JWT, or with --tokens opaque one that only the provider can read. The program prints {"kind":"ready","url":…} with its issuer.

import { Provider } from "oidc-provider";

const flag = (name) => process.argv[process.argv.indexOf("--" + name) + 1];
const issuer = `http://127.0.0.1:${flag("port")}`;

const provider = new Provider(issuer, {
  clients: [{ client_id: "dormouse", client_secret: "secret", redirect_uris: [flag("callback")], grant_types: ["authorization_code", "refresh_token"] }],
  clientDefaults: { grant_types: ["authorization_code", "refresh_token"] },
  scopes: ["openid", "offline_access", "mcp"],
  claims: { openid: ["sub", "groups"], email: ["email", "email_verified"], profile: ["name"] },
  pkce: { required: () => true },
  rotateRefreshToken: true,
  issueRefreshToken: (ctx, client) => client.grantTypeAllowed("refresh_token"),
  extraTokenClaims: () => ({ groups: ["engines"] }),
  findAccount: (ctx, id) => ({
    accountId: id,
    claims: () => ({ sub: id, name: "Ada", email: "ada@example.com", email_verified: true, groups: ["engines"] }),
  }),
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource) => ({ scope: "mcp", audience: resource, accessTokenFormat: flag("tokens"), accessTokenTTL: 3600 }),
    },
  },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  cookies: { keys: ["a test only"] },
  ttl: { AccessToken: 3600, Grant: 3600, IdToken: 3600, Interaction: 3600, Session: 3600 },
});

const page = (uid, body) => `<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Provider</title></head><body>
<form method="post" action="/interaction/${uid}">${body}</form></body></html>`;

const signIn = (uid, said) => page(uid, `<p>${said}</p><p><label>Name <input name="name" value=""></label></p>
<p><label>Password <input type="password" name="password" value=""></label></p><button name="answer" value="allow">Sign in</button>`);

const consent = (uid, client) => page(uid, `<p>${client} wants to use your account</p><button name="answer" value="allow">Allow</button><button name="answer" value="deny">Deny</button>`);

async function body(request) {
  let text = "";
  for await (const part of request) text += part;
  return new URLSearchParams(text);
}

/** Grants a client all that it has asked for. */
async function grantAll({ params, session, grantId }) {
  const grant = (grantId && (await provider.Grant.find(grantId))) || new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope("openid email profile offline_access mcp");
  for (const resource of [params.resource].flat().filter(Boolean)) grant.addResourceScope(resource, "mcp");
  return grant.save();
}

// Pages of the provider. The rest is oidc-provider's.
provider.use(async (ctx, next) => {
  if (!ctx.path.startsWith("/interaction/")) return next();
  const interaction = await provider.interactionDetails(ctx.req, ctx.res);
  const { uid, prompt, params } = interaction;
  ctx.type = "html";
  if (ctx.method === "GET") {
    ctx.body = prompt.name === "login" ? signIn(uid, "Who are you?") : consent(uid, "A client");
    return undefined;
  }
  const form = await body(ctx.req);
  let result;
  if (prompt.name === "login") {
    if (form.get("name") !== "ada" || form.get("password") !== "lovelace") {
      ctx.body = signIn(uid, "Wrong name or password");
      return undefined;
    }
    result = { login: { accountId: "ada-1" } };
  } else if (form.get("answer") === "allow") {
    result = { consent: { grantId: await grantAll(interaction) } };
  } else {
    result = { error: "access_denied", error_description: "the user has refused" };
  }
  return provider.interactionFinished(ctx.req, ctx.res, result, { mergeWithLastSubmission: true });
});

provider.listen(Number(flag("port")), "127.0.0.1", () => console.log(JSON.stringify({ kind: "ready", url: issuer })));
