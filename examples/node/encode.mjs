// Encodes texts without a client of ours: gRPC, the .proto file, and little-endian numbers.
//
//   npm ci && node encode.mjs [host:port]
import { credentials, loadPackageDefinition, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";

const proto = fileURLToPath(new URL("../../proto/headwaiter_proto/encoder.proto", import.meta.url));
const { Encoder } = loadPackageDefinition(loadSync(proto, { enums: String })).headwaiter.v1;
const client = new Encoder(process.argv[2] ?? "localhost:50051", credentials.createInsecure());

function encode(texts) {
  const deadline = Date.now() + 30_000;
  return new Promise((resolve, reject) => {
    client.encode({ texts: { values: texts } }, { deadline }, (error, reply) => (error ? reject(error) : resolve(reply)));
  });
}

// [rows, width] float32, row after row.
function rows({ shape: [count, width], data }) {
  const value = (row, column) => data.readFloatLE(4 * (row * width + column));
  return Array.from({ length: count }, (_, row) => Array.from({ length: width }, (_, column) => value(row, column)));
}

const texts = ["the bread is fresh", "rain falls on stone"];
const { pooled, lengths, model } = await encode(texts);
for (const [index, vector] of rows(pooled).entries()) {
  console.log(`${texts[index]}: ${lengths[index]} tokens, ${vector.slice(0, 3).join(" ")} …`);
}
console.log(`by ${model.name}`);

try {
  await encode([""]);
} catch (error) {
  console.log(`${status[error.code]}: ${error.details}`);
}
client.close();
