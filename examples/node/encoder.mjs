// A client made from gRPC and the .proto file alone. The other examples import it.
import { credentials, loadPackageDefinition } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { fileURLToPath } from "node:url";

const proto = fileURLToPath(new URL("../../proto/headwaiter_proto/encoder.proto", import.meta.url));
const { Encoder } = loadPackageDefinition(loadSync(proto, { enums: String })).headwaiter.v1;
// Without the option, gRPC refuses replies above 4 MiB: 2,800 vectors of 384 numbers.
const options = { "grpc.max_receive_message_length": -1 };
export const client = new Encoder(process.argv[2] ?? "localhost:50051", credentials.createInsecure(), options);

export const in30s = () => ({ deadline: Date.now() + 30_000 });

export function encode(request) {
  return new Promise((resolve, reject) => {
    client.encode(request, in30s(), (error, reply) => (error ? reject(error) : resolve(reply)));
  });
}

// Returns the rows of a FLOAT32 tensor [rows, width] as arrays of numbers.
export function rows({ shape: [count, width], data }) {
  const value = (row, column) => data.readFloatLE(4 * (row * width + column));
  return Array.from({ length: count }, (_, row) => Array.from({ length: width }, (_, column) => value(row, column)));
}
