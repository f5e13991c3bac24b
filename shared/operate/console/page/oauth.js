// People sign in at the provider of the endpoint: the page is a client of the endpoint's
// authorization server, by an authorization code with PKCE.
import { Refusal, signIn } from "./api.js";

const { provider, endpoint } = document.body.dataset;

/** The name of the provider, undefined if nobody signs in there. */
export const at = endpoint ? provider : undefined;

const kept = "sign-in", by = "signed-in"; // in sessionStorage, which is of this tab
const text = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const random = (n) => text(crypto.getRandomValues(new Uint8Array(n)));
const redirect = endpoint + "/console/home";

/** Sends the browser to the provider. It comes back to the view of the page that it left. */
export async function begin() {
  const back = location.hash.startsWith("#/sign-in") ? "#/" : location.hash;
  // The provider sends it to this address. Only a page of this origin can go on there.
  if (location.origin !== new URL(endpoint).origin) return location.assign(redirect + "#/sign-in/go");
  const [state, verifier] = [random(16), random(32)];
  sessionStorage.setItem(kept, JSON.stringify({ state, verifier, back }));
  location.assign(`${endpoint}/authorize?` + new URLSearchParams({
    response_type: "code", client_id: "dormouse-console", redirect_uri: redirect, resource: endpoint + "/console/", state,
    code_challenge: text(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier))), code_challenge_method: "S256",
  }));
}

/** Signs in who comes back from the provider, and returns what the API says to them. */
export async function finish() {
  const query = new URLSearchParams(location.search);
  if (!query.has("state")) return undefined;
  const begun = JSON.parse(sessionStorage.getItem(kept) ?? "{}");
  sessionStorage.removeItem(kept);
  history.replaceState(null, "", location.pathname + (begun.back ?? "#/"));
  if (begun.state !== query.get("state")) throw new Refusal(0, "state", "This sign-in was begun in another tab, or is over. Begin again.");
  if (!query.has("code")) throw new Refusal(0, query.get("error"), `The sign-in was refused: ${query.get("error_description") ?? query.get("error")}.`);
  const response = await fetch(endpoint + "/token", { method: "POST", body: new URLSearchParams({
    grant_type: "authorization_code", client_id: "dormouse-console", redirect_uri: redirect, code: query.get("code"), code_verifier: begun.verifier,
  }) });
  const answer = await response.json();
  if (!response.ok) throw new Refusal(response.status, answer.error, answer.error_description);
  const me = await signIn(answer.access_token);
  sessionStorage.setItem(by, Date.now());
  return me;
}

/**
 * Reports whether a visitor who is not signed in any more should go back to the provider
 * unasked. It has let them in from this tab, and not in the last minute.
 */
export const again = () => at && Date.now() - (sessionStorage.getItem(by) ?? Date.now()) > 60000;
export const forget = () => sessionStorage.removeItem(by);
