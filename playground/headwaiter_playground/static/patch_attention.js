// The card of the attention over the patches of a picture, in one layer and head.
import { byId, drawing, setOptions, showTable, table } from "./dom.js";
import { layerWeights } from "./layer_weights.js";
import { loadedCard } from "./loaded_card.js";
import { fixed, percent } from "./numbers.js";
import { patchGrid, seenPart } from "./patch_grid.js";
import { drawPatches } from "./patch_map.js";

const DECIMALS = 4;

/** Return the card; it calls `changed` whenever it is drawn. */
export function patchAttention(models, changed) {
    const choices = { layer: byId("patch-layer"), head: byId("patch-head"), token: byId("patch-token") };
    const { layer: layerChoice, head: headChoice, token: tokenChoice } = choices;
    let asked = null; // The picture to show.

    const loading = loadedCard(
        "patch",
        async (signal) => {
            const { model, images, bitmap } = asked;
            if (!model.attends) throw new RangeError(`${model.model.name} offers no attention weights.`);
            const layer = Number(layerChoice.value);
            const grid = patchGrid(model);
            const tokens = grid.prefix + grid.rows * grid.columns;
            const ask = (heads) => models.call(model, "Attend", { images, layers: [layer], heads }, { signal });
            const { weights, count } = await layerWeights(ask, model.heads, tokens);
            if (count !== tokens)
                throw new RangeError(`${model.model.name} has ${count} tokens, which are not the patches of a picture.`);
            return { weights, count, grid, layer, bitmap, part: seenPart(bitmap, model) };
        },
        () => redraw(),
        ({ bitmap }) => bitmap === asked.bitmap,
    );

    const redraw = drawing(byId("panel-images"), () => {
        const { shown } = loading;
        if (!shown) return;
        changed();
        const { weights, count, grid, layer, bitmap, part } = shown;
        const [head, token] = [headChoice, tokenChoice].map((choice) => Number(choice.value));
        const begin = (head * count + token) * count;
        const row = weights.subarray(begin, begin + count);
        const onPatches = row.subarray(grid.prefix);
        const title = `${nameOf(token, grid)}, layer ${layer}, head ${head}`;
        byId("patch-title").textContent = `Attention over the patches: ${title}`;
        drawPatches(byId("patch-map"), { bitmap, part, grid, weights: onPatches, chosen: token - grid.prefix });
        const share = onPatches.reduce((sum, weight) => sum + weight, 0);
        byId("patch-words").textContent =
            `${nameOf(token, grid)} gives ${percent(share)} of its attention to patches. ` +
            "Bright patches get much of it, dark patches little; the brightest has the largest weight.";
        const order = Array.from(row.keys()).sort((one, other) => row[other] - row[one] || one - other);
        const rows = order.map((position) => [nameOf(position, grid), fixed(row[position], DECIMALS)]);
        showTable(byId("patch-table"), table(`Weights that the token gives: ${title}.`, ["to", "weight"], rows));
    });

    layerChoice.addEventListener("change", () => asked && loading.run());
    for (const choice of [headChoice, tokenChoice]) choice.addEventListener("change", redraw);
    byId("patch-map").addEventListener("click", ({ offsetX, offsetY }) => {
        const patch = byId("patch-map").patchAt?.(offsetX, offsetY);
        if (patch === undefined) return;
        tokenChoice.value = String(loading.shown.grid.prefix + patch);
        redraw();
    });
    return {
        /** Offer the layers, the heads and the tokens of a model of images. */
        useModel(model) {
            const grid = patchGrid(model);
            setOptions(layerChoice, model.layers, (layer) => `Layer ${layer}`);
            setOptions(headChoice, model.heads, (head) => `Head ${head}`);
            setOptions(tokenChoice, grid.prefix + grid.rows * grid.columns, (token) => nameOf(token, grid));
        },
        /** Return what the address holds of the card. */
        state: () => Object.fromEntries(Object.entries(choices).map(([name, { value }]) => [name, Number(value)])),
        /** Show the choices of an address, as far as the model has them. */
        restore(linked) {
            for (const [name, choice] of Object.entries(choices)) {
                choice.value = String(linked[name] ?? 0);
                if (choice.selectedIndex < 0) choice.value = "0";
            }
            if (loading.shown && loading.shown.layer !== Number(layerChoice.value)) loading.run();
            else redraw();
            return false;
        },
        /** Show a picture: a bitmap, and the images of a request. */
        load(picture) {
            asked = picture;
            loading.run();
        },
        /** Show nothing of the last reply. */
        forget() {
            asked = null;
            loading.forget();
        },
    };
}

/** Return the name of a token: one of the model's own, or a patch. */
function nameOf(token, { prefix, columns }) {
    if (token < prefix) return token ? `The model’s own token ${token}` : "The class token";
    const patch = token - prefix;
    return `Patch in row ${Math.floor(patch / columns)}, column ${patch % columns}`;
}
