// The tab Images: the labels of a picture, and the attention of one of its patches over the others.
import { labelledText } from "./classify_tab.js";
import { byId } from "./dom.js";
import { loadedCard } from "./loaded_card.js";
import { loadedTab } from "./loaded_tab.js";
import { isSameModel } from "./models.js";
import { patchAttention } from "./patch_attention.js";
import { readPicture } from "./picture_file.js";
import { base64, float32Rows } from "./tensors.js";

/** Return the tab; it calls `changed` whenever its state, which does not have the picture, has changed. */
export function imagesTab(models, changed) {
    let model = null;
    let file = null; // The picture that the user has chosen.
    const attention = patchAttention(models, changed);

    const load = loadedCard(
        "images",
        async (signal) => {
            const asked = model;
            const chosen = file;
            if (!chosen) return null;
            const { bytes, bitmap, isCopy } = await readPicture(chosen, Math.max(asked.image.height, asked.image.width));
            const images = { values: [base64(bytes)] };
            const classifies = asked.tasks.includes("TASK_CLASSIFY");
            const reply = classifies ? await models.call(asked, "Classify", { images }, { signal }) : null;
            return { model: asked, name: chosen.name, images, bitmap, isCopy, reply };
        },
        (result) => {
            tab.loaded();
            const { reply, name, isCopy, bitmap } = result;
            const note = isCopy ? " The file is large, or neither JPEG nor PNG: the model reads a smaller copy." : "";
            byId("images-status").textContent = `${name}: ${bitmap.width} × ${bitmap.height} pixels.${note}`;
            const cards = reply ? [labelledText("Labels", reply.head.labels, float32Rows(reply.scores))] : [];
            byId("images-labels").replaceChildren(...cards);
            attention.load(result);
        },
    );

    function choose(files) {
        if (!files.length) return;
        [file] = files;
        tab.changed();
    }

    const tab = loadedTab({
        use(description) {
            if (load.shown && !isSameModel(load.shown.model.model, description?.model)) {
                load.forget();
                attention.forget();
            }
            model = description?.takesImages ? description : null;
            if (model) attention.useModel(model);
        },
        load,
        state: attention.state,
        restore: attention.restore,
    });
    const form = byId("images-form");
    form.addEventListener("submit", (event) => event.preventDefault());
    byId("images-input").addEventListener("change", ({ target }) => choose(target.files));
    form.addEventListener("dragover", (event) => event.preventDefault());
    form.addEventListener("drop", (event) => {
        event.preventDefault();
        choose(event.dataTransfer.files);
    });
    return tab;
}
