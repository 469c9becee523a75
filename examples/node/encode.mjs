// Encodes two texts, and prints the token count and the start of the vector of each text.
// Run: npm ci && node encode.mjs [host:port]
import { client, encode, rows } from "./encoder.mjs";

const texts = ["the bread is fresh", "rain falls on stone"];
const { pooled, lengths, model } = await encode({ texts: { values: texts } });
for (const [index, vector] of rows(pooled).entries()) {
  console.log(`${texts[index]}: ${lengths[index]} tokens, ${vector.slice(0, 3).join(" ")} …`);
}
console.log(`model ${model.name}`);
client.close();
