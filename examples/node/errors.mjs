// Makes two wrong requests, and prints the status, the reason and the metadata of each error.
// Run: npm ci && node errors.mjs [host:port]
import { status } from "@grpc/grpc-js";
import protobuf from "protobufjs";
import { client, encode } from "./encoder.mjs";

// The parts of google/rpc/status.proto and google/rpc/error_details.proto that this program reads.
const { root } = protobuf.parse(`
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`);
const [Status, ErrorInfo] = ["Status", "ErrorInfo"].map((name) => root.lookupType(name));

// Returns the ErrorInfo, or undefined for errors that gRPC itself raises, for example when no server answers.
function errorInfo(error) {
  const details = error.metadata.get("grpc-status-details-bin").flatMap((bytes) => Status.decode(bytes).details);
  const info = details.find(({ typeUrl }) => typeUrl.endsWith("/google.rpc.ErrorInfo"));
  return info && ErrorInfo.decode(info.value);
}

for (const request of [{ texts: { values: ["good"], prompt: "another" } }, { model: "another", texts: { values: ["good"] } }]) {
  try {
    await encode(request);
  } catch (error) {
    console.log(`${status[error.code]}: ${error.details}`);
    const info = errorInfo(error);
    if (info) {
      console.log(`  ${info.reason} ${JSON.stringify(info.metadata)}`);
    }
  }
}
client.close();
