// Who may look: the user of this machine by a link, everybody else by an API key.
import { html, useState } from "./vendor/htm-preact.js";
import { signIn } from "./api.js";
import { Problem, Snippet } from "./parts.js";

export function SignIn({ used, entered }) {
  const [error, setError] = useState(used ? "This link was used already, or is older than a minute. Make a new one." : undefined);
  const [busy, setBusy] = useState(false);
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
    <section><h2>On this machine</h2><p>This command prints a link that opens the console. It works once.</p><${Snippet} text="dormouse open" label="command" /></section>
    <section><h2>With an API key</h2><p id="which">A key of role viewer sees; one of role operator also acts.</p>
      <form onSubmit=${submit}><label>API key <input name="key" type="password" autocomplete="current-password" required aria-describedby="which" spellcheck="false" /></label>
      <div class="row"><button class="first" disabled=${busy}>Sign in</button></div></form></section>
  </main>`;
}
