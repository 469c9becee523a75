// What the buttons save of the chosen head: its heat map as a picture, and its weights as a file.
import { attentionCsv } from "./attention_files.js";
import { byId, download } from "./dom.js";
import { picture } from "./map_picture.js";
import { isDark } from "./theme.js";

const nameOf = ({ layer, head }) => `attention-layer-${layer}-head-${head}`;

/**
 * Save the heat map. `now` has what the tab shows: `shown`, the `layer`, the `head`, the `settings`, and the head's weights
 * as the model computed them, `raw`, and under the settings, `weights`.
 */
export function downloadPicture(now) {
    const { shown, layer, head, settings } = now;
    const { causal, noSelf, temperature, crossedOut } = settings;
    const title = [
        shown.model.model.name,
        `layer ${layer}, head ${head}`,
        causal && "causal mask",
        noSelf && "self mask",
        crossedOut.size > 0 && `without ${[...crossedOut].map((key) => shown.tokens[key]).join(" ")}`,
        temperature !== 1 && `temperature ${temperature}`,
        shown.text,
    ];
    const parts = title.filter(Boolean).join(" · ");
    picture(byId("map"), parts, isDark()).toBlob((blob) => download(blob, `${nameOf(now)}.png`));
}

/** Save the weights of all pairs of tokens. */
export function downloadWeights(now) {
    const text = attentionCsv(now.layer, now.head, now.shown.tokens, now.raw, now.weights);
    download(new Blob([text], { type: "text/csv" }), `${nameOf(now)}.csv`);
}
