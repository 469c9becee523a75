// The small heat maps of all heads, as buttons that choose a head, in an order that the user chooses.
import { byId, element } from "./dom.js";
import { ORDERS } from "./head_patterns.js";
import { drawHead } from "./heat_maps.js";
import { fixed } from "./numbers.js";
import { isDark } from "./theme.js";
import { toolbar } from "./toolbar.js";

// A row has the heads of one layer, if they are not more than this.
const MOST_COLUMNS = 16;

// The value of the choice of an order that is not among ORDERS.
const ORDER_OF_MODEL = "model";

/**
 * Return the grid. It calls `choose` with a layer and a head, and with the position of a token or undefined, and
 * `viewChanged` when the user wants another order of the heads, or separators dimmed or not.
 */
export function headGrid(choose, viewChanged) {
    const box = byId("heads");
    const order = byId("order");
    const pair = { query: byId("find-query"), key: byId("find-key") };
    let buttons = []; // In the order of the model.
    let sorted = []; // The positions of the buttons on the screen.
    let shown = null;
    let drawn = [];
    let linked = null; // The positions of two tokens in an address.

    const place = (index) => [shown.layers[Math.floor(index / shown.heads)], index % shown.heads];
    const columns = () => Math.max(1, sorted.findIndex((index) => buttons[index].offsetTop > buttons[sorted[0]].offsetTop));
    toolbar(box, () => sorted.map((index) => buttons[index]), (at) => choose(...place(sorted[at])), columns);

    function make() {
        box.style.setProperty("--columns", Math.min(shown.heads, MOST_COLUMNS));
        buttons = Array.from({ length: shown.layers.length * shown.heads }, (_, index) => {
            const canvas = element("canvas", { "aria-hidden": "true" });
            const button = element("button", { type: "button" }, canvas, element("small", {}));
            button.addEventListener("click", () => choose(...place(index)));
            return button;
        });
    }

    /** Put the heads in the chosen order, with the number by which they are sorted. */
    function sort() {
        const wanted = ORDERS[order.value];
        const positions = { query: Number(pair.query.value), key: Number(pair.key.value) };
        const size = shown.count * shown.count;
        const numbers = buttons.map((_, index) =>
            wanted?.of(shown.weights.subarray(index * size, (index + 1) * size), shown.tokens, positions),
        );
        sorted = [...buttons.keys()];
        if (wanted) sorted.sort((one, other) => wanted.first * (numbers[one] - numbers[other]) || one - other);
        buttons.forEach((button, index) => {
            const number = wanted ? fixed(numbers[index], wanted.decimals) : "";
            const [layer, head] = place(index);
            button.lastChild.textContent = number;
            button.title = `Layer ${layer}, head ${head}${number && `: ${number}`}`;
            button.ariaLabel = button.title;
        });
        box.replaceChildren(...sorted.map((index) => buttons[index]));
    }

    order.addEventListener("change", () => {
        if (shown) sort();
        viewChanged();
    });
    byId("dim").addEventListener("change", viewChanged);
    byId("find").addEventListener("submit", (event) => {
        event.preventDefault();
        order.value = "pair";
        sort();
        choose(...place(sorted[0]), Number(pair.query.value));
    });

    return {
        /** Whether the user wants separators dimmed. */
        get isDim() {
            return byId("dim").checked;
        },
        /** What an address needs to show the heads in this order, and drawn like this. */
        get state() {
            const isOrdered = order.value !== ORDER_OF_MODEL;
            return { order: isOrdered ? order.value : undefined, sought: Number(pair.key.value), dim: this.isDim };
        },
        restore(state) {
            order.value = state.order in ORDERS ? state.order : ORDER_OF_MODEL;
            byId("dim").checked = Boolean(state.dim);
            linked = { query: state.token, key: state.sought };
            if (shown) this.use(shown);
        },
        /** Have buttons for the heads of a text. */
        use(newest) {
            shown = newest;
            if (buttons.length !== shown.layers.length * shown.heads) make();
            for (const [side, each] of Object.entries(pair)) offerTokens(each, shown.tokens, linked?.[side]);
            linked = null;
            sort();
        },
        /**
         * Mark the chosen head. `weightsOf` returns the weights of a layer and a head, [tokens, tokens], which depend on
         * the text and `settings` alone: the maps are drawn anew only if these are other objects, or in another theme.
         */
        show(settings, [layer, head], weightsOf) {
            buttons.forEach((button, index) => {
                const isChosen = String(place(index)) === String([layer, head]);
                button.ariaPressed = String(isChosen);
                button.tabIndex = isChosen ? 0 : -1;
            });
            const wanted = [shown, settings, isDark(), this.isDim];
            if (wanted.every((each, index) => each === drawn[index])) return;
            drawn = wanted;
            buttons.forEach((button, index) =>
                drawHead(button.firstChild, weightsOf(...place(index)), shown.count, isDark()),
            );
        },
        /** Offer to look for heads in which one token looks at another one. */
        offer(query, key = pair.key.value) {
            [pair.query.value, pair.key.value] = [query, key];
        },
    };
}

function offerTokens(choice, tokens, position = Number(choice.value)) {
    const chosen = Math.min(position, tokens.length - 1);
    choice.replaceChildren(
        ...tokens.map((token, position) => element("option", { value: position }, `${token} (${position})`)),
    );
    choice.value = String(chosen);
}
