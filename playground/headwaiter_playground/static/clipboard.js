// Copies texts to the clipboard.
import { element } from "./dom.js";

/** Copy a text, and return what to tell the user. */
export async function copied(text) {
    try {
        await navigator.clipboard.writeText(text);
        return "Copied.";
    } catch {
        // A page without TLS has no clipboard, unless it is on the user's own computer.
        return copiedFromField(text) ? "Copied." : "The browser does not let the page copy.";
    }
}

function copiedFromField(text) {
    const focused = document.activeElement;
    const field = element("textarea", { class: "for-readers" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return done;
}
