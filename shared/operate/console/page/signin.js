// Who may look: the user of this machine by a link, everybody else by signing in at the
// provider of the endpoint, or by an API key.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { endpoint, signIn } from "./api.js";
import * as oauth from "./oauth.js";
import { Do, Problem, Snippet } from "./parts.js";

const here = /^(localhost|127\.|\[::1\])/.test(location.hostname);

export function SignIn({ how, refused, entered }) {
  const [error, setError] = useState(refused ?? (how === "used" ? "This link was used already, or is older than a minute. Make a new one." : undefined));
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    if (oauth.at && (how === "go" || (!error && oauth.again()))) oauth.begin();
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      entered(await signIn(new FormData(event.target).get("key")));
    } catch (e) {
      setError(e.status === 401 ? "This API key is not good: it is mistyped, revoked or has ended." : e);
      setBusy(false);
    }
  };
  return html`<main id="main" class="door">
    <h1>Dormouse</h1>
    <${Problem} error=${error} />
    ${oauth.at && html`<section><h2>With your account</h2><p>You sign in at ${oauth.at}, and the rules of this endpoint say what you may see and do.</p><div class="row"><${Do} kind="first" to=${oauth.begin}>Sign in<//></div></section>`}
    <section><h2>${here ? "On this machine" : "From a terminal"}</h2><p>This command prints a link that opens the console. It works once.</p><${Snippet} text=${here ? "dormouse open" : `dormouse open --url ${endpoint()} --key KEY`} label="command" /></section>
    <section><h2>With an API key</h2><p id="which">A key of role viewer or auditor sees; one of role operator also acts.</p>
      <form onSubmit=${submit}><label>API key <input name="key" type="password" autocomplete="current-password" required aria-describedby="which" spellcheck="false" /></label>
      <div class="row"><button class=${oauth.at ? "" : "first"} disabled=${busy}>Sign in${oauth.at ? " with the key" : ""}</button></div></form></section>
  </main>`;
}
