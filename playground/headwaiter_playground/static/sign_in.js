// The form for the token.
import { readToken } from "./calls.js";
import { byId, say } from "./dom.js";

/** Show the form when calls wait for the token. The server shows it from the start if it asks for tokens. */
export function signIn(calls) {
    const [form, field, error] = ["sign-in", "token", "token-error"].map(byId);

    calls.addEventListener("token-needed", ({ message }) => {
        form.hidden = false;
        say(error, message);
        field.focus();
    });
    form.addEventListener("submit", (event) => {
        event.preventDefault();
        try {
            const token = readToken(field.value);
            form.hidden = true;
            say(error, "");
            calls.useToken(token);
        } catch (refusal) {
            say(error, refusal.message);
            field.focus();
        }
        field.value = "";
    });
    if (!form.hidden) calls.askForToken();
}
