// Guided examples: texts, each with what a head can do, and the pattern of the head that the page then looks for.
import { byId, element } from "./dom.js";
import { PATTERNS } from "./head_patterns.js";

const EXAMPLES = [
    {
        name: "Coreference",
        words: "A pronoun looks at the noun that it stands for.",
        text: "The animal didn't cross the street because it was too tired",
        pattern: PATTERNS.reference,
    },
    {
        name: "Previous token",
        words: "Each token looks at the one before it, whatever they mean.",
        text: "The train to the coast leaves at noon and arrives in the evening",
        pattern: PATTERNS.previous,
    },
    {
        name: "Same word",
        words: "A word looks at the other places where the text has it.",
        text: "The dog chased the cat and then the cat chased the dog",
        pattern: PATTERNS.same,
    },
    {
        name: "Separator",
        words: "Tokens that look for nothing look at marks such as [CLS] and [SEP], where the text begins and ends.",
        text: "The violinist tuned her strings before the concert",
        pattern: PATTERNS.separator,
    },
];

/** Offer the examples as buttons, which call `open` with an example. */
export function offerExamples(open) {
    const buttons = EXAMPLES.map((example) => {
        const button = element(
            "button",
            { type: "button" },
            element("b", {}, example.name),
            element("span", { class: "hint" }, example.words),
        );
        button.addEventListener("click", () => open(example));
        return button;
    });
    byId("examples").replaceChildren(...buttons);
}
