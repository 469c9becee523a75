// The models of the server, and the one that the user has chosen; both are asked for again and again.
import { CallError, NoAnswer } from "./calls.js";
import { loader } from "./loader.js";
import { polling } from "./polling.js";
import { kindsOf } from "./sequence_input.js";

const REFRESH_MS = 5000;

/** Return whether two references mean the same version of a model. */
export function isSameModel(one, other) {
    return ["name", "version", "digest"].every((field) => one?.[field] === other?.[field]);
}

/**
 * The models of the server. Fires "changed" when the list, the chosen model or its version has changed.
 *
 * `names` has the models that answer requests; `chosen` is the description of the chosen one, or null if there is none;
 * `removed` is the name of a model that was chosen, and that the server no longer has; `error` is why the server
 * refuses to tell, or empty.
 */
export class Models extends EventTarget {
    names = [];
    chosen = null;
    removed = "";
    error = "";
    #calls;
    #wanted = "";
    #listed = "";
    #load = loader(
        (signal) => this.#read(signal),
        (state) => state && this.#change({ error: "", ...state }),
        (error) => {
            this.#listed = "";
            this.#change({ error: error.message });
        },
    );

    constructor(calls) {
        super();
        this.#calls = calls;
    }

    /** Read the models now, and again every few seconds; choose the one with a name, unless the name is empty. */
    follow(name = "") {
        this.#wanted = name;
        polling(() => this.#load.run(), REFRESH_MS).start();
    }

    /** Choose a model by its name. */
    choose(name) {
        this.#wanted = name;
        this.#listed = "";
        return this.#load.run();
    }

    /**
     * Return the reply of a model to a call. If the server has replaced or removed the model since it was described,
     * the models are read anew before the call fails: then the tabs already load what they show from the new model.
     */
    async call(model, method, request, options) {
        const { name } = model.model;
        try {
            const reply = await this.#calls.call(method, { model: name, ...request }, options);
            if (isSameModel(reply.model, model.model)) return reply;
        } catch (error) {
            if (error instanceof CallError && !(error instanceof NoAnswer)) await this.#load.run();
            throw error;
        }
        await this.#load.run();
        throw new CallError(`The server has replaced ${name}: try again.`);
    }

    /** Return the names and the description of the chosen model; nothing if neither has changed. */
    async #read(signal) {
        const describe = (name) => this.#calls.call("GetModel", { name }, { signal });
        const { models } = await this.#calls.call("ListModels", {}, { signal });
        const listed = JSON.stringify(models);
        if (listed === this.#listed) return null;
        const names = models.map(({ name }) => name);
        let chosen = names.includes(this.#wanted) ? await describe(this.#wanted) : null;
        const removed = this.#wanted && !chosen ? this.#wanted : "";
        // The default model is the first of the list.
        for (const name of chosen ? [] : names) {
            const model = await describe(name);
            chosen ??= model;
            if (kindsOf(model).length) {
                chosen = model;
                break;
            }
        }
        this.#listed = listed;
        this.#wanted = chosen?.model.name ?? "";
        return { names, chosen, removed };
    }

    #change(state) {
        Object.assign(this, state);
        this.dispatchEvent(new Event("changed"));
    }
}
