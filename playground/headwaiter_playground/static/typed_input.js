// A text area whose kind of input, texts or token ids, depends on the model.
import { byId, element } from "./dom.js";
import { debounced } from "./loader.js";
import { TEXTS, kindsOf } from "./sequence_input.js";

const TYPING_PAUSE_MS = 400;

/**
 * Return an object for the text area `NAME-input` and the choice `NAME-kind`. It calls `changed` when the user has
 * stopped typing. `labels` has the label of the text area for each kind; `samples` what to show first for each kind.
 */
export function typedInput(name, labels, samples, changed) {
    const area = byId(`${name}-input`);
    const choice = byId(`${name}-kind`);
    const label = document.querySelector(`label[for=${name}-input]`);
    const typed = { [TEXTS]: area.value, ...samples };
    let kind = TEXTS;

    function use(next) {
        typed[kind] = area.value;
        kind = next;
        area.value = typed[kind];
        label.textContent = labels[kind];
    }

    area.addEventListener("input", debounced(changed, TYPING_PAUSE_MS));
    area.form.addEventListener("submit", (event) => event.preventDefault());
    choice.addEventListener("change", () => {
        use(choice.value);
        changed();
    });
    return {
        /** The kind of the input. */
        get kind() {
            return kind;
        },
        /** What the user typed. */
        get text() {
            return area.value;
        },
        set text(text) {
            area.value = text;
        },
        /** Let the user type an input of a kind, if the model takes the kind, and show a text unless it is undefined. */
        show(newKind, text) {
            if ([...choice.options].some(({ value }) => value === newKind)) use(newKind);
            choice.value = kind;
            area.value = text ?? area.value;
        },
        /** What the address holds of the input. */
        get state() {
            return { kind: kind === TEXTS ? undefined : kind, text: area.value };
        },
        /** Show the input of an address, and return whether the text is another one. */
        restore(linked) {
            const before = area.value;
            this.show(linked.kind ?? TEXTS, linked.text);
            return area.value !== before;
        },
        /** Offer the kinds that a model takes. */
        useModel(model) {
            const kinds = kindsOf(model);
            choice.replaceChildren(
                ...kinds.map((each) => element("option", { value: each }, each === TEXTS ? "Text" : "Token ids")),
            );
            choice.hidden = kinds.length < 2;
            area.disabled = !kinds.length;
            if (kinds.length && !kinds.includes(kind)) use(kinds[0]);
            choice.value = kind;
        },
    };
}
