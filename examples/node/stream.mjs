// Encodes a stream of requests in one call, and prints a vector or an error for each request.
// Run: npm ci && node stream.mjs [host:port]
import { Readable } from "node:stream";
import { client, in30s, rows } from "./encoder.mjs";

const texts = new Map([
  ["a", "the bread is fresh"],
  ["b", "too long ".repeat(150)],
  ["c", "rain falls on stone"],
]);

function* requests() {
  for (const [requestId, text] of texts) {
    yield { requestId, texts: { values: [text] } };
  }
}

// A pipe sends no faster than the server reads, and the server reads no faster than this program reads the answers.
const call = client.encodeStream(in30s());
Readable.from(requests()).pipe(call);
for await (const { requestId, response, error } of call) {
  // Answers arrive in any order; the id names the request. A failed request does not affect the other requests.
  if (error) {
    console.log(`${requestId}: ${error.reason}: ${error.message}`);
  } else {
    const [vector] = rows(response.pooled);
    console.log(`${texts.get(requestId)}: ${response.lengths[0]} tokens, ${vector.slice(0, 3).join(" ")} …`);
  }
}
client.close();
