// Compares the manifests on standard input, a list in JSON, with the schemas of the operators' custom resources.
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject";
import { PrometheusRule } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PrometheusRule";
import { ServiceMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor";
import { readFileSync } from "node:fs";

const kinds = { PrometheusRule, ScaledObject, ServiceMonitor };
for (const manifest of JSON.parse(readFileSync(0, "utf8"))) {
  const kind = kinds[manifest.kind];
  if (manifest.apiVersion !== kind.apiVersion) throw new Error(`${manifest.kind}: ${manifest.apiVersion}`);
  new kind(manifest).validate();
}
