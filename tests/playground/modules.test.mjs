// The modules of the playground that need no browser. Run with `node --test`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { attentionCsv } from "../../playground/headwaiter_playground/static/attention_files.js";
import { contextOf, isAsComputed, strongest, whatIfHead, whatIfRow } from "../../playground/headwaiter_playground/static/attention_maths.js";
import { CallError, Calls, LONG_RUN, readToken } from "../../playground/headwaiter_playground/static/calls.js";
import { contrast, heat, readableOn, weightShare } from "../../playground/headwaiter_playground/static/colours.js";
import { asOpenAi } from "../../playground/headwaiter_playground/static/copied_calls.js";
import { cosineMatrix, nearestNeighbours } from "../../playground/headwaiter_playground/static/cosines.js";
import {
  batchSeconds,
  longestInBatch,
  measuredRatio,
  mostSequences,
  predictedSeconds,
  quadraticHalf,
  scaledCost,
  tableSteps,
  total,
} from "../../playground/headwaiter_playground/static/cost_model.js";
import { csv } from "../../playground/headwaiter_playground/static/csv.js";
import { bestHead, likelyHeads, PATTERNS } from "../../playground/headwaiter_playground/static/head_patterns.js";
import { headSteps } from "../../playground/headwaiter_playground/static/head_steps.js";
import { headsPerCall, layerWeights, mostTokens, textWeights } from "../../playground/headwaiter_playground/static/layer_weights.js";
import { isOfOtherVersion, readState, writeState } from "../../playground/headwaiter_playground/static/link_state.js";
import { measuredRun, percentile } from "../../playground/headwaiter_playground/static/measured_run.js";
import { loader } from "../../playground/headwaiter_playground/static/loader.js";
import { tabsOf } from "../../playground/headwaiter_playground/static/model_tabs.js";
import { Models } from "../../playground/headwaiter_playground/static/models.js";
import { counted, milliseconds, percent, ticks } from "../../playground/headwaiter_playground/static/numbers.js";
import { secondBegin } from "../../playground/headwaiter_playground/static/pair_maths.js";
import { polling } from "../../playground/headwaiter_playground/static/polling.js";
import { meanBetween, ratePerS, readTotals } from "../../playground/headwaiter_playground/static/prometheus.js";
import { sampleSequences } from "../../playground/headwaiter_playground/static/samples.js";
import { filledLines, requestInput, whyNoInput } from "../../playground/headwaiter_playground/static/sequence_input.js";
import { barLengths, fallingOrder } from "../../playground/headwaiter_playground/static/score_maths.js";
import { stageSeconds } from "../../playground/headwaiter_playground/static/stages.js";
import { float32Rows, roundingOf, tokenSequences, weightValues } from "../../playground/headwaiter_playground/static/tensors.js";
import { followed } from "../../playground/headwaiter_playground/static/token_spans.js";
import { shownToken } from "../../playground/headwaiter_playground/static/tokens.js";

const near = (actual, expected) =>
  actual.forEach((value, index) => assert.ok(Math.abs(value - expected[index]) < 1e-12, `${actual}`));
const ROW = Float32Array.of(0.125, 0.5, 0.25, 0.125);
const PLAIN = { causal: false, noSelf: false, temperature: 1, crossedOut: new Set() };

test("without masks, the weights are those of the model", () => {
  assert.deepEqual([...whatIfRow(ROW, 1, PLAIN)], [...ROW]);
});

test("masked weights are zero, and the others keep their ratios and add up to one", () => {
  near([...whatIfRow(ROW, 1, { ...PLAIN, causal: true })], [0.2, 0.8, 0, 0]);
  near([...whatIfRow(ROW, 1, { ...PLAIN, noSelf: true })], [0.25, 0, 0.5, 0.25]);
  near([...whatIfRow(ROW, 2, { ...PLAIN, causal: true, noSelf: true })], [0.2, 0.8, 0, 0]);
});

test("a token that is crossed out has no weight for any other", () => {
  const settings = { ...PLAIN, crossedOut: new Set([1]) };
  assert.ok(isAsComputed(PLAIN) && !isAsComputed(settings));
  near([...whatIfRow(ROW, 2, settings)], [0.25, 0, 0.5, 0.25]);
});

test("a context vector is the sum of the values by their weights", () => {
  near([...contextOf(ROW, Float32Array.of(8, 1, 0, 2, 4, 3, 0, 4))], [2, 2.375]);
});

test("a temperature raises the weights to 1 / temperature", () => {
  const powers = [...ROW].map((weight) => weight ** 2);
  const sum = powers.reduce((a, b) => a + b);
  near(
    [...whatIfRow(ROW, 0, { ...PLAIN, temperature: 0.5 })],
    powers.map((power) => power / sum),
  );
});

test("tiny weights at a low temperature stay finite, and zeros stay zero", () => {
  const row = whatIfRow(Float32Array.of(1e-30, 1e-31, 0), 0, { ...PLAIN, temperature: 0.1 });
  near([...row], [1 - 1e-10, 1e-10, 0]);
});

test("a row of which nothing is left is zero", () => {
  assert.deepEqual([...whatIfRow(ROW, 0, { ...PLAIN, causal: true, noSelf: true })], [0, 0, 0, 0]);
  const head = whatIfHead(Float32Array.of(0.5, 0.5, 0.25, 0.75), 2, { ...PLAIN, causal: true, noSelf: true });
  assert.deepEqual([...head], [0, 0, 1, 0]);
});

test("the strongest weights keep their order, and the rest is summed", () => {
  assert.deepEqual(strongest(ROW, 2), { kept: [1, 2], rest: 0.25 });
  assert.deepEqual(strongest(ROW, 9), { kept: [0, 1, 2, 3], rest: 0 });
});

test("tensors keep every bit", () => {
  const numbers = Float32Array.of(0.1, -3e-38, 1, -2);
  const data = Buffer.from(numbers.buffer).toString("base64");
  const rows = float32Rows({ dtype: "DATA_TYPE_FLOAT32", shape: [2, 2], data });
  assert.deepEqual(
    rows.map((row) => [...row]),
    [[...numbers.subarray(0, 2)], [...numbers.subarray(2)]],
  );
  assert.throws(() => float32Rows({ dtype: "DATA_TYPE_FLOAT16", shape: [2, 2], data }), TypeError);
});

test("token ids become little-endian int32", () => {
  const { data, ...rest } = tokenSequences([[101, 70000], [102]]);
  assert.deepEqual(rest, { dtype: "DATA_TYPE_INT32", lengths: [2, 1] });
  const bytes = Buffer.from(data, "base64");
  assert.deepEqual(
    [0, 4, 8].map((at) => bytes.readInt32LE(at)),
    [101, 70000, 102],
  );
});

test("typed lines become texts or token ids", () => {
  assert.deepEqual(filledLines("a\n \r\nb\n"), ["a", "b"]);
  assert.deepEqual(requestInput("texts", ["a", "b"]), { texts: { values: ["a", "b"] } });
  assert.deepEqual(requestInput("tokens", ["1, 2;3"]).tokens.lengths, [3]);
  for (const wrong of ["one", "-1", "1.5", "99999999999", "1 2 x"])
    assert.throws(() => requestInput("tokens", [wrong]), RangeError);
});

test("a model of features has a reason why the page has no input for it", () => {
  const model = { takesTexts: false, takesTokens: false, featureWidth: 6, model: { name: "m" } };
  assert.match(whyNoInput(model), /feature vectors of 6/);
  assert.match(whyNoInput({ ...model, takesImages: true }), /m takes pictures/);
  assert.equal(whyNoInput({ ...model, takesTokens: true }), "");
});

test("cosines and nearest neighbours", () => {
  const cosines = cosineMatrix(
    [
      [3, 0],
      [3, 3],
      [0, -2],
      [0, 0],
    ].map((values) => Float32Array.from(values)),
  );
  near(cosines[0], [1, Math.SQRT1_2, 0, 0]);
  near(cosines[1], [Math.SQRT1_2, 1, -Math.SQRT1_2, 0]);
  assert.deepEqual(
    nearestNeighbours(cosines).map(({ index }) => index),
    [1, 0, 0, 0],
  );
  assert.equal(nearestNeighbours([[1]])[0].index, -1);
});

test("CSV quotes texts, and a spreadsheet runs none of them as a formula", () => {
  assert.equal(
    csv([
      ["a", 1.5, -2],
      ['say "hi", you', ""],
    ]),
    '"a",1.5,-2\r\n"say ""hi"", you",""\r\n',
  );
  for (const text of ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1"]) assert.equal(csv([[text]]), `"'${text}"\r\n`);
  const file = attentionCsv(1, 2, ["=a", "b"], Float32Array.of(0.25, 0.75, 0.5, 0.5), [0, 1, 1, 0]);
  assert.equal(file.split("\r\n")[2], `1,2,0,"'=a",1,"b",0.75,1`);
});

test("the metrics of a model are summed over their other labels, and counters give rates and means", () => {
  const page = (queued, sum, count) => `# HELP q Text.
q{model="a \\" } 9",version="1"} ${queued}
q{kind="x",model="a \\" } 9",version="2"} 1
q{model="b"} 1e+06
q{other_model="a"} 7
h_sum{model="a \\" } 9"} ${sum}
h_count{model="a \\" } 9"} ${count}
h_count{model="b"} 100
big 1.5e+06
`;
  const [before, after] = [page(2, 10, 2), page(4, 40, 8)].map((text) => readTotals(text, 'a " } 9'));
  assert.equal(after.get("q"), 5);
  assert.equal(readTotals(page(0, 0, 0), "b").get("q"), 1e6);
  assert.equal(meanBetween(before, after, "h"), 5);
  assert.ok(Number.isNaN(meanBetween(after, after, "h")));
  assert.equal(ratePerS(before, after, "h_sum", 2), 15);
  assert.equal(ratePerS(after, before, "h_sum", 2), 0);
});

test("the cost model follows its formula", () => {
  const cost = { launchS: 0.002, tokenS: 1e-4, paddedRowS: 2e-5, cellS: 1e-6 };
  const [B, n] = [3, 50];
  assert.ok(
    Math.abs(total(batchSeconds(cost, n, B)) - (0.002 + 1e-4 * B * n + 2e-5 * B * n + 1e-6 * B * n * n)) < 1e-15,
  );
  const half = quadraticHalf(cost, B);
  const parts = batchSeconds(cost, half, B);
  assert.ok(Math.abs(parts.attention / total(parts) - 0.5) < 1e-9);
  assert.equal(quadraticHalf({ ...cost, cellS: 0 }, B), Infinity);
  assert.deepEqual(tableSteps(1, 10), [1, 2, 4, 8, 10]);
  assert.deepEqual(tableSteps(1, 8), [1, 2, 4, 8]);
  assert.deepEqual(tableSteps(3, 8), [3, 4, 8]);
  assert.deepEqual(tableSteps(17, 17), [17]);
});

test("the cost is scaled by what the last batches took", () => {
  const cost = { launchS: 0.002, tokenS: 1e-4, paddedRowS: 2e-5, cellS: 1e-6 };
  const lengths = [3, 5];
  const padded = 0.002 + 1e-4 * 8 + 2e-5 * 10 + 1e-6 * 50;
  near([predictedSeconds(cost, lengths)], [padded]);
  near([predictedSeconds({ ...cost, variableLength: true }, lengths)], [padded - 1e-6 * (50 - 34)]);
  const batches = [1, 2, 7].map((factor) => ({ lengths, measuredS: factor * padded }));
  near([measuredRatio(cost, batches), measuredRatio(cost, batches.slice(0, 2))], [2, 1.5]);
  assert.equal(measuredRatio(cost, []), 1);
  near([total(batchSeconds(scaledCost(cost, 2), 50, 3))], [2 * total(batchSeconds(cost, 50, 3))]);
});

test("a batch holds no more than its budget, except for one sequence alone", () => {
  const model = { minTokens: 2, maxTokens: 512, execution: { tokenBudget: 512, cellBudget: "20000" } };
  assert.deepEqual([1, 2, 64].map((sequences) => longestInBatch(model, sequences)), [512, 100, 8]);
  assert.equal(mostSequences(model), 256);
  const unknown = { ...model, execution: { tokenBudget: 0, cellBudget: "0" } };
  assert.deepEqual([longestInBatch(unknown, 64), mostSequences(unknown)], [512, Infinity]);
});

test("the network has the time on the wire outside of the server, and the browser has the rest", () => {
  const timings = { tokenizeS: 1, queueS: 2, assembleS: 3, computeS: 4, respondS: 5, totalS: 15 };
  for (const [wireS, network, browser] of [[17, 2, 3], [14, 0, 5], [30, 5, 0], [NaN, 5, 0]])
    assert.deepEqual(stageSeconds({ browserS: 20, wireS, timings }), [1, 2, 3, 4, 5, network, browser]);
});

test("text on every colour of a heat map is readable", () => {
  for (const dark of [false, true]) {
    for (let share = 0; share <= 1; share += 0.01) {
      const colour = heat(share, dark);
      assert.ok(contrast(colour, readableOn(colour)) >= 4.5, `${share} ${dark}`);
    }
  }
});

test("a weight has the same colour in all heat maps, and a larger weight a stronger one", () => {
  assert.deepEqual([0, 0.25, 1].map(weightShare), [0, 0.5, 1]);
});

test("a token is read from what a user pasted, and one that no header can hold is refused", () => {
  for (const text of ["abc-1", " abc-1\n", "Bearer abc-1", "bearer  abc-1", "Authorization: Bearer abc-1"])
    assert.equal(readToken(text), "abc-1");
  for (const text of ["", "  ", "Bearer ", "schlüssel", "two words", "a\u0000b"])
    assert.throws(() => readToken(text), RangeError, text);
});

test("tokens of control characters and spaces can be seen", () => {
  assert.equal(shownToken("\n"), "␊");
  assert.equal(shownToken(" "), "␠");
  assert.equal(shownToken("a\u0000b\u007f"), "a␀b␡");
  assert.equal(shownToken("<b>"), "<b>");
});

test("a token is followed to its new position, or its neighbour is chosen", () => {
  for (const [before, after, from, to] of [
    ["S a b E", "S x a b E", 2, 3],
    ["S a b E", "S b E", 2, 1],
    ["S a b E", "S a b c E", 1, 1],
    ["S a b E", "S a b c E", 3, 4],
    ["S a b E", "S a x E", 2, 2],
    ["S a b E", "S E", 2, 1],
    ["S a a E", "S a a a E", 2, 2],
    ["S a", "b", 1, 0],
  ])
    assert.equal(followed(before.split(" "), after.split(" "), from), to, `${before} | ${after}`);
});

test("numbers as texts", () => {
  assert.deepEqual([0.1234, 0.01234, 0.00012].map(milliseconds), ["123", "12.3", "0.12"]);
  assert.deepEqual([0.5, 0.031, NaN].map(percent), ["50 %", "3.1 %", "–"]);
  assert.deepEqual(ticks(9), [0, 2.5, 5, 7.5, 10]);
  assert.deepEqual(ticks(0), [0, 1]);
  assert.deepEqual([counted(1, "text"), counted(2000, "text"), counted(2, "batch", "batches")], ["1 text", "2\u202f000 texts", "2 batches"]);
});

test("samples have from one to the wanted number of words, or token ids within the model's limits", () => {
  const lengths = sampleSequences({ takesTexts: true }, 200, 5).map((line) => line.split(" ").length);
  assert.deepEqual([Math.min(...lengths), Math.max(...lengths)], [1, 5]);
  const model = { takesTexts: false, vocabularySize: 7, minTokens: 3, maxTokens: 4 };
  for (const line of sampleSequences(model, 200, 50)) assert.match(line, /^[0-6]( [0-6]){2,3}$/);
});

const reply = (status, body, headers = {}) => ({ status, headers: new Headers(headers), json: async () => body });

test("at most two calls are in flight, and the others keep their order", async () => {
  const open = [];
  const calls = new Calls((url) => new Promise((answer) => open.push({ url, answer })));
  const made = ["A", "B", "C", "D"].map((name) => calls.call(name, {}));
  await new Promise(setImmediate);
  assert.deepEqual(
    open.map(({ url }) => url),
    ["call/A?1", "call/B?2"],
  );
  open[1].answer(reply(200, { from: "B" }));
  assert.deepEqual(await made[1], { from: "B" });
  await new Promise(setImmediate);
  assert.deepEqual(
    open.map(({ url }) => url),
    ["call/A?1", "call/B?2", "call/C?3"],
  );
  for (const { answer } of open) answer(reply(200, {}));
  await new Promise(setImmediate);
  open[3].answer(reply(200, {}));
  await Promise.all(made);
});

test("a refusal has the server's message, and makes room for the next call", async () => {
  const calls = new Calls(async () => reply(400, { message: "too long: send less", reason: "SEQUENCE_TOO_LONG" }));
  for (let count = 0; count < 5; count += 1) {
    await assert.rejects(calls.call("Encode", {}), (error) => {
      assert.ok(error instanceof CallError);
      assert.deepEqual([error.message, error.reason], ["too long: send less", "SEQUENCE_TOO_LONG"]);
      return true;
    });
  }
});

/** Return what a promise gives, made while the time of the test runs `seconds` at once. */
async function after(context, seconds, promise) {
  await new Promise(setImmediate);
  context.mock.timers.tick(1000 * seconds);
  return promise;
}

test("a call waits for a server that is away or that starts, as long as the server asks for", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const starting = { message: "the server is starting", reason: "STARTING" };
  const answers = [
    () => Promise.reject(new TypeError("fetch failed")),
    async () => ({ status: 502, json: async () => JSON.parse("<html>") }),
    async () => reply(503, starting, { "Retry-After": "7" }),
    async () => reply(200, { at: "last" }),
  ];
  const calls = new Calls(() => answers.shift()());
  const told = [];
  calls.addEventListener("waiting", () => told.push(calls.waitsFor));
  const made = calls.call("ListModels", {});
  await after(context, 1);
  await after(context, 2);
  await after(context, 6.9);
  await new Promise(setImmediate);
  assert.equal(answers.length, 1);
  assert.deepEqual(await after(context, 0.1, made), { at: "last" });
  assert.equal(told.length, 4);
  assert.match(told[0], /no answer/);
  assert.match(told[1], /not JSON \(status 502\)/);
  assert.deepEqual(told.slice(2), ["the server is starting", ""]);
});

test("a call of a long run is not made again, and does not hold up other calls", async () => {
  const open = [];
  const calls = new Calls((url, { signal }) => new Promise((answer, fail) => {
    open.push({ url, answer });
    signal?.addEventListener("abort", () => fail(signal.reason));
  }));
  const run = new AbortController();
  const options = { lane: LONG_RUN, signal: run.signal };
  const made = Array.from({ length: 9 }, () => calls.call("Encode", {}, options));
  const ended = Promise.allSettled(made);
  const look = calls.call("Attend", {});
  await new Promise(setImmediate);
  assert.deepEqual(
    open.map(({ url }) => url),
    ["call/Encode?1", "call/Encode?2", "call/Encode?3", "call/Encode?4", "call/Attend?5"],
  );
  open[4].answer(reply(200, {}));
  await look;
  open[0].answer(reply(503, { message: "full" }, { "Retry-After": "1" }));
  await assert.rejects(made[0], /full/);
  await new Promise(setImmediate);
  run.abort();
  await ended;
  assert.equal(open.length, 6);
  // The lane is free again.
  const last = calls.call("Encode", {}, { lane: LONG_RUN });
  await new Promise(setImmediate);
  open[6].answer(reply(200, {}));
  await last;
});

test("a call waits for the token, which is asked for once, and then sent with every call", async () => {
  const sent = [];
  const calls = new Calls(async (url, { headers }) => {
    sent.push(headers.Authorization);
    return headers.Authorization === "Bearer secret" ? reply(200, { url }) : reply(401, { message: "it is wrong" });
  });
  const asked = [];
  calls.addEventListener("token-needed", ({ message }) => asked.push(message));
  const made = [calls.call("ListModels", {}), calls.call("GetModel", {})];
  await new Promise(setImmediate);
  calls.useToken("wrong");
  await new Promise(setImmediate);
  calls.useToken("secret");
  assert.deepEqual(await Promise.all(made), [{ url: "call/ListModels?5" }, { url: "call/GetModel?6" }]);
  assert.deepEqual(asked, ["", "it is wrong"]);
  assert.deepEqual(sent, [undefined, undefined, ...Array(2).fill("Bearer wrong"), ...Array(2).fill("Bearer secret")]);
});

test("a page that knows that a token is needed makes no call without one", async () => {
  const sent = [];
  const calls = new Calls(async (url, { headers }) => {
    sent.push(headers.Authorization);
    return reply(200, {});
  });
  calls.askForToken();
  const made = calls.call("ListModels", {});
  await new Promise(setImmediate);
  calls.useToken("secret");
  await made;
  assert.deepEqual(sent, ["Bearer secret"]);
});

test("only replies with timings are recorded, the last twenty of each method", async () => {
  let now = 0;
  const timings = { totalS: 0.5 };
  const calls = new Calls(
    async (url) => reply(200, url.includes("GetModel") ? {} : { timings, lengths: [1, 2], model: { name: "m" } }),
    () => (now += 1000),
    async () => 0.75,
  );
  for (let count = 0; count < 21; count += 1) await calls.call("Encode", {});
  await calls.call("GetModel", {});
  for (let count = 0; count < 30; count += 1) await calls.call("Attend", {});
  await new Promise(setImmediate);
  const numbers = Array.from({ length: 20 }, (_, index) => index);
  assert.deepEqual(
    calls.records.map(({ method, number }) => [method, number]),
    [...numbers.map((index) => ["Encode", index + 2]), ...numbers.map((index) => ["Attend", index + 32])],
  );
  const record = { number: 2, method: "Encode", model: "m", sequences: 2, timings, browserS: 1, wireS: 0.75 };
  assert.deepEqual(calls.records[0], record);
});

test("a token that was refused after the user has typed another one is not asked for again", async () => {
  const answers = [];
  const calls = new Calls(() => new Promise((answer) => answers.push(answer)));
  let asked = 0;
  calls.addEventListener("token-needed", () => (asked += 1));
  const old = calls.call("ListBatches", {});
  await new Promise(setImmediate);
  calls.useToken("secret");
  answers[0](reply(401, { message: "the token is missing", reason: "UNAUTHENTICATED" }));
  await new Promise(setImmediate);
  answers[1](reply(200, {}));
  await old;
  assert.equal(asked, 0);
});

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

test("a view asks again a pause after each answer, also after a failed one, until it stops", async () => {
  const answers = [];
  const failures = [];
  const { run } = loader(
    () => new Promise((answer, refuse) => answers.push({ answer, refuse })),
    () => {},
    (error) => failures.push(error),
  );
  const polls = polling(run, 1);
  polls.start();
  await pause(30);
  assert.equal(answers.length, 1);
  answers[0].refuse("busy");
  await pause(30);
  assert.deepEqual([answers.length, failures], [2, ["busy"]]);
  answers[1].answer();
  await pause(30);
  assert.equal(answers.length, 3);
  polls.stop();
  answers[2].answer();
  await pause(30);
  assert.equal(answers.length, 3);
  polls.start();
  polls.start();
  await pause(200);
  for (const { answer } of answers.slice(3)) answer();
  await pause(30);
  // Both starts ask, but only the newer one goes on.
  assert.equal(answers.length, 6);
  polls.stop();
});

/** Return a function that answers for a list of heads, with the head's index as each weight, and the lists asked for. */
function attending(count) {
  const asked = [];
  const ask = async (heads) => {
    asked.push(heads);
    const values = Float32Array.from({ length: heads.length * count * count }, (_, at) => heads[Math.floor(at / count ** 2)]);
    const data = Buffer.from(values.buffer).toString("base64");
    return { tokens: ["a"], weights: { dtype: "DATA_TYPE_FLOAT32", shape: [1, heads.length, count, count], data } };
  };
  return { ask, asked };
}

test("the heads of a short text come in one call, those of a long text in several", async () => {
  const heads = [0, 1, 2, 3, 4];
  for (const [count, likely, lists] of [
    [3, 20, [heads]],
    [3, 800, [[0], [1, 2, 3, 4]]],
    [700, 4000, [[0], [1, 2, 3], [4]]],
    [700, 700, [[0], [1, 2, 3], [4]]],
  ]) {
    const { ask, asked } = attending(count);
    const { weights, tokens, ...rest } = await layerWeights(ask, 5, likely);
    assert.deepEqual([asked, rest, tokens], [lists, { count }, ["a"]]);
    assert.deepEqual(
      heads.map((head) => new Set(weights.subarray(head * count ** 2, (head + 1) * count ** 2))),
      heads.map((head) => new Set([head])),
    );
  }
});

test("no call asks for more than a reply may have, and a head is never split", () => {
  for (const tokens of [1, 100, 362, 418, 512, 887, 1254])
    assert.ok(headsPerCall(tokens) * 4 * tokens ** 2 <= 6 * 2 ** 20);
  assert.equal(headsPerCall(1255), 1);
  assert.ok(mostTokens("a😀") >= 7);
});

test("the rest of a layer that nobody waits for is not asked for", async () => {
  const { ask, asked } = attending(700);
  const cancelled = (heads) => (asked.length < 3 ? ask(heads) : Promise.reject(new Error("cancelled")));
  await assert.rejects(layerWeights(cancelled, 12, 4000), /cancelled/);
  assert.deepEqual(asked, [[0], [1, 2, 3], [4, 5, 6]]);
});

test("the answer to an old input never replaces the answer to a newer one, and of many runs only two ask", async () => {
  const shown = [];
  const asked = [];
  const { run } = loader(
    (signal) => new Promise((answer, refuse) => asked.push({ signal, answer, refuse })),
    (value) => shown.push(value),
    (error) => shown.push(error),
  );
  const runs = Array.from({ length: 80 }, run);
  await pause(300);
  assert.deepEqual(
    asked.map(({ signal }) => signal.aborted),
    [true, false],
  );
  asked[1].answer("last");
  asked[0].refuse("first");
  await Promise.all(runs);
  assert.deepEqual(shown, ["last"]);
});

const ANIMAL = ["[CLS]", "the", "animal", "is", "tired", "so", "the", "it", "[SEP]"];

/** Return the weights of heads, each with some weights of 0.5 from a query to a key. */
function lookingHeads(...heads) {
  const count = ANIMAL.length;
  const weights = new Float32Array(heads.length * count * count).fill(0.01);
  heads.forEach((pairs, head) => pairs.forEach(([query, key], at) => (weights[(head * count + query) * count + key] = 0.5 + at / 10)));
  return weights;
}

test("the head of a pattern is the one with the largest weights that count", () => {
  const best = (pattern, ...heads) => bestHead(lookingHeads(...heads), ANIMAL, PATTERNS[pattern]);
  // Neighbours, separators, later words, and the same word do not count.
  const others = [[7, 6], [7, 0], [8, 2], [2, 7], [6, 1]];
  assert.deepEqual(best("reference", others, [[7, 2]]), { index: 1, query: 7, key: 2 });
  assert.deepEqual(best("previous", [[2, 1], [3, 2], [8, 7]], [[1, 0], [3, 2], [4, 3], [5, 4]]), { index: 1, query: 5, key: 4 });
  assert.deepEqual(best("same", [[1, 2]], [[6, 1]]), { index: 1, query: 6, key: 1 });
  assert.deepEqual(best("separator", [[0, 8], [8, 0]], [[3, 0], [2, 8]]), { index: 1, query: 2, key: 8 });
  assert.equal(bestHead(new Float32Array(4), ["[CLS]", "[SEP]"], PATTERNS.reference), null);
});

test("rounded weights tell which heads may follow a pattern best", () => {
  const heads = [0.5, 0.6, 0.603, 0.59, 0.4, 0.597, 0.6].map((weight) => {
    const weights = lookingHeads([[7, 2]]);
    weights[7 * ANIMAL.length + 2] = weight;
    return [...weights];
  });
  assert.deepEqual(likelyHeads(Float32Array.from(heads.flat()), ANIMAL, PATTERNS.reference), [2, 1, 6]);
  assert.deepEqual(likelyHeads(Float32Array.from(heads.slice(3, 5).flat()), ANIMAL, PATTERNS.reference), [0]);
  assert.deepEqual(likelyHeads(new Float32Array(4), ["[CLS]", "[SEP]"], PATTERNS.reference), []);
});

test("a text of rounded weights is read as far as it was rounded", () => {
  const rows = [[1, 0, 0, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2], [0.8, 0.05, 0.06, 0.07, 0.02], [0, 0, 0, 0, 0]];
  const characters = rows.flat().map((weight) => 35 + Math.round(127 * Math.sqrt(weight)));
  const values = weightValues({ rounded: String.fromCharCode(...characters), shape: [1, 1, 4, 5] });
  rows.flat().forEach((weight, at) => assert.ok(Math.abs(values[at] - weight) <= roundingOf(weight)));
  assert.deepEqual([...values.subarray(5, 10)], [...new Float32Array(5).fill(0.2)]);
  assert.deepEqual([...values.subarray(15)], [0, 0, 0, 0, 0]);
});

test("tokens of all kinds of vocabularies count as the same word", () => {
  const weights = Float32Array.from({ length: 9 }, (_, cell) => cell / 9);
  assert.deepEqual(bestHead(weights, ["▁cat", "Ġcat", "Cat"], PATTERNS.same), { index: 0, query: 2, key: 1 });
});

test("the steps explain weights that masks and distances of the model change", () => {
  const vector = { query: 1, queryVector: Float32Array.of(2, 0, 0, 0), values: Float32Array.of(1, 2, 4) };
  vector.keys = Float32Array.of(1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0);
  // The model adds ln 2 to the first score, and masks the last one.
  vector.weights = Float32Array.of((2 * Math.E) / (2 * Math.E + Math.E ** 2), Math.E / (2 + Math.E), 0);
  const steps = headSteps(vector, PLAIN);
  assert.deepEqual([steps.products, steps.divisor, steps.scaled, steps.adds], [[2, 4, 6], 2, [1, 2, 3], true]);
  assert.ok(Math.abs(steps.scores[0] - steps.scores[1] - (Math.LN2 - 1)) < 1e-6);
  assert.equal(steps.scores[2], -Infinity);
  steps.weights.forEach((weight, key) => assert.ok(Math.abs(weight - vector.weights[key]) < 1e-6));
  const half = headSteps(vector, { ...PLAIN, temperature: 0.5 });
  assert.deepEqual(half.scaled, [2, 4, 6]);
  [...whatIfRow(vector.weights, 1, { ...PLAIN, temperature: 0.5 })].forEach((weight, key) =>
    assert.ok(Math.abs(weight - half.weights[key]) < 1e-6),
  );
  assert.deepEqual(headSteps(vector, { ...PLAIN, crossedOut: new Set([0, 1, 2]) }).weights, [0, 0, 0]);
});

test("the weights of all layers come in one call, unless the server allows fewer bytes", async () => {
  const count = 3;
  const asked = [];
  const ask = async (layers, heads) => {
    asked.push([layers, heads]);
    const data = Buffer.alloc(4 * layers.length * heads.length * count * count).toString("base64");
    return { tokens: [], weights: { dtype: "DATA_TYPE_FLOAT32", shape: [layers.length, heads.length, count, count], data } };
  };
  const model = { layers: 3, heads: 2, limits: { maxAttendBytes: 6 * 4 * 9 } };
  assert.deepEqual((await textWeights(ask, model, 1, 3)).layers, [0, 1, 2]);
  assert.deepEqual(asked.splice(0), [[[0, 1, 2], [0, 1]]]);
  model.limits.maxAttendBytes -= 1;
  assert.deepEqual((await textWeights(ask, model, 1, 3)).layers, [1]);
  assert.deepEqual(asked, [[[1], [0, 1]]]);
});

test("the tabs are those of what a model does", () => {
  const does = (tasks, others = {}) => tabsOf({ tasks: tasks.map((task) => `TASK_${task}`), takesTexts: true, ...others });
  const always = ["latency", "cost", "models"];
  assert.deepEqual(does(["ENCODE", "ATTEND"]), ["attention", "similarity", ...always]);
  assert.deepEqual(does(["CLASSIFY", "RERANK"]), ["attention", "rerank", ...always]);
  assert.deepEqual(does(["ENCODE", "CLASSIFY_TOKENS"]), ["attention", "classify", "similarity", ...always]);
  assert.deepEqual(does(["ENCODE"], { takesTexts: false }), ["attention", ...always]);
  assert.deepEqual(tabsOf(null), ["attention", "similarity", ...always]);
});

test("the second text of a pair begins where its tokens differ from those without it", () => {
  assert.equal(secondBegin(["[CLS]", "a", "[SEP]", "b", "[SEP]"], ["[CLS]", "a", "[SEP]", "[SEP]"]), 3);
  assert.equal(secondBegin(["[CLS]", "a", "[SEP]", "[SEP]"], ["[CLS]", "a", "[SEP]", "[SEP]"]), 3);
});

test("bars of scores from 0 to 1 have the length of the score, others lie between the extremes", () => {
  assert.deepEqual(barLengths([0.25, 1]), [0.25, 1]);
  assert.deepEqual(barLengths([-2, 0, 2]), [0, 0.5, 1]);
  assert.deepEqual(barLengths([3, 3]), [1, 1]);
  assert.deepEqual(fallingOrder(Float32Array.of(1, 3, 3, 2)), [1, 2, 3, 0]);
});

test("an address holds a state, and a damaged one holds what is not damaged", () => {
  const state = {
    tab: "attention",
    model: "a model",
    digest: "0123abcd",
    layer: 5,
    head: 11,
    token: 8,
    crossedOut: [0, 9],
    causal: true,
    temperature: 0.5,
    text: "50 % & “ice”?\n+ #1",
  };
  assert.deepEqual(readState(writeState(state)), state);
  const plain = { tab: "attention", layer: 0, crossedOut: [], causal: false, noSelf: undefined, other: 1 };
  assert.equal(writeState(plain), "attention?layer=0");
  assert.equal(writeState({ tab: "cost" }), "cost");
  assert.deepEqual(readState(writeState({ tab: "attention", text: "a".repeat(20_001) })), { tab: "attention" });
  assert.deepEqual(readState(""), { tab: "" });
  const damaged = "attention?layer=-1&head=1e3&token=&temperature=hot&crossedOut=1.x.3&causal=yes&other=1&text=%E0%A4";
  assert.deepEqual(readState(damaged), { tab: "attention", crossedOut: [1, 3], causal: false, text: "\ufffd" });
});

test("a link is of another version if its digest begins otherwise", () => {
  const now = { name: "m", digest: "abcdef" };
  const isOther = (link) => isOfOtherVersion(link, now);
  assert.deepEqual([{}, { model: "m" }, { model: "m", digest: "abc" }, { model: "n", digest: "b" }].map(isOther), [
    false,
    false,
    false,
    false,
  ]);
  assert.ok(isOther({ model: "m", digest: "abd" }));
  assert.ok(!isOfOtherVersion({ model: "m", digest: "abc" }, null));
});

test("a run has so many calls in flight as it may, and tells how long each took", async () => {
  const [inFlight, told] = [[], []];
  let running = 0;
  const call = async () => {
    inFlight.push((running += 1));
    await new Promise((end) => setTimeout(end, 60));
    running -= 1;
  };
  const { signal } = new AbortController();
  const { seconds, error } = await measuredRun({ count: 7, concurrency: 3, call, told: (n) => told.push(n), signal });
  assert.equal(error, null);
  assert.deepEqual([seconds.length, Math.max(...inFlight), told], [7, 3, [1, 2, 3, 4, 5, 6, 7]]);
  assert.ok(Math.min(...seconds) > 0.055, `${seconds}`);
});

test("a run ends with the first error, and when the user cancels it", async () => {
  let made = 0;
  const call = async () => {
    made += 1;
    if (made === 3) throw new RangeError("no");
  };
  const run = new AbortController();
  const options = { count: 100, concurrency: 1, call, told: () => {}, signal: run.signal };
  const failed = await measuredRun(options);
  assert.deepEqual([failed.seconds.length, failed.error.message, made], [2, "no", 3]);
  const cancelled = await measuredRun({ ...options, told: (replies) => replies === 5 && run.abort() });
  assert.deepEqual([cancelled.seconds.length, cancelled.error.name], [5, "AbortError"]);
});

test("a percentile is the smallest number that a share of the numbers does not exceed", () => {
  const hundred = Array.from({ length: 100 }, (_, index) => 100 - index);
  assert.deepEqual([0.5, 0.95, 0.99, 1].map((share) => percentile(hundred, share)), [50, 95, 99, 100]);
  assert.deepEqual([percentile([7], 0.5), percentile([7], 0.99), percentile([2, 1, 3], 0.5)], [7, 7, 2]);
  assert.ok(Number.isNaN(percentile([], 0.5)));
});

test("OpenAI's client has a call for texts", () => {
  const program = (texts) => asOpenAi({ method: "Encode", request: { model: "m", texts } }, "http://a/playground/", false);
  assert.match(program({ values: ["a"] }), /embeddings\.create\(model="m", input=\["a"\]\)/);
});
