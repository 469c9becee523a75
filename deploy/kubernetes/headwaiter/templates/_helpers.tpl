{{- define "headwaiter.selector" -}}
app.kubernetes.io/name: headwaiter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headwaiter.labels" -}}
{{ include "headwaiter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "headwaiter.headless" -}}
{{ .Release.Name }}-headless
{{- end }}

{{- /* Without TLS, proxies must speak HTTP/2 to the port for gRPC from the first byte. */}}
{{- define "headwaiter.grpcPort" -}}
- name: grpc
  port: 50051
  targetPort: grpc
  {{- if not .Values.tls.secretName }}
  appProtocol: kubernetes.io/h2c
  {{- end }}
{{- end }}

{{- /* The series that Prometheus reads of the pods of this release, see monitoring.yaml. */}}
{{- define "headwaiter.series" -}}
{namespace={{ .Release.Namespace | quote }},service={{ include "headwaiter.headless" . | quote }}}
{{- end }}

{{- /* Busy seconds per second of one replica: each device has up to `instances` sessions. */}}
{{- define "headwaiter.busy" -}}
{{- $devices := ternary .Values.gpus 1 (eq .Values.provider "cuda") -}}
{{- round (mulf .Values.autoscaling.busyShare $devices (.Values.settings.instances | default 1)) 3 | quote }}
{{- end }}

{{- define "headwaiter.scaling" -}}
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownAfterSeconds }}
  policies:
    - {type: Pods, value: 1, periodSeconds: 60}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Percent, value: 100, periodSeconds: 60}
    - {type: Pods, value: 2, periodSeconds: 60}
{{- end }}

{{- define "headwaiter.container" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- /* An orchestrator's gRPC probes have no TLS. The port of the metrics never has TLS. */}}
{{- define "headwaiter.readiness" -}}
{{- if .Values.tls.secretName -}}
httpGet: {path: /health/ready, port: metrics}
{{- else -}}
grpc: {port: 50051}
{{- end }}
{{- end }}

{{- /* Refuses values that contradict each other. */}}
{{- define "headwaiter.check" -}}
{{- with .Values }}
{{- if not .image.repository }}
{{- fail "image.repository is empty: give the repository to which you pushed the image of the server" }}
{{- end }}
{{- if and .model.claimName .model.fetch.image }}
{{- fail "model.claimName and model.fetch.image are both given: give one of them" }}
{{- end }}
{{- if not (or .model.claimName .model.fetch.image) }}
{{- fail "the chart has no bundle: give model.claimName, or model.fetch.image with its command" }}
{{- end }}
{{- if and .model.name .model.several }}
{{- fail "model.name needs a single bundle: the folders name several models; leave model.name empty" }}
{{- end }}
{{- with .stop }}
{{- $needed := add .preStopSeconds .drainDelaySeconds .drainSeconds 10 }}
{{- if lt (int .gracePeriodSeconds) (int $needed) }}
{{- fail (printf "stop.gracePeriodSeconds %d is too short, so requests would be lost: give at least %d, which is preStopSeconds %d + drainDelaySeconds %d + drainSeconds %d + 10" (int .gracePeriodSeconds) (int $needed) (int .preStopSeconds) (int .drainDelaySeconds) (int .drainSeconds)) }}
{{- end }}
{{- end }}
{{- if lt (int .autoscaling.maxReplicas) (int .autoscaling.minReplicas) }}
{{- fail (printf "autoscaling.maxReplicas %d is less than autoscaling.minReplicas %d: raise the first or lower the second" (int .autoscaling.maxReplicas) (int .autoscaling.minReplicas)) }}
{{- end }}
{{- if and (eq .autoscaling.kind "none") (or (ne (int .autoscaling.minReplicas) 2) (ne (int .autoscaling.maxReplicas) 8)) }}
{{- fail "autoscaling.minReplicas and maxReplicas have no effect while autoscaling.kind is none: set autoscaling.kind to keda or hpa" }}
{{- end }}
{{- if and (eq .autoscaling.kind "keda") (gt (int .replicas) (int .autoscaling.maxReplicas)) }}
{{- fail (printf "replicas %d, which KEDA takes without metrics, is more than autoscaling.maxReplicas %d: lower the first or raise the second" (int .replicas) (int .autoscaling.maxReplicas)) }}
{{- end }}
{{- if and (eq .autoscaling.kind "keda") (not .monitoring.enabled) }}
{{- fail "autoscaling.kind keda reads the series of the ServiceMonitor: set monitoring.enabled" }}
{{- end }}
{{- if and .http.enabled (has (int .http.port) (list 50051 9464)) }}
{{- fail (printf "http.port %d is the port of gRPC or of the metrics: give another port" (int .http.port)) }}
{{- end }}
{{- if and .tls.clientCa (not .tls.secretName) }}
{{- fail "tls.clientCa needs tls.secretName: give the secret with tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- if and (eq .autoscaling.kind "hpa") (eq .provider "cpu") (not (dig "requests" "cpu" "" .resources)) }}
{{- fail "autoscaling.kind hpa measures the share of resources.requests.cpu: give resources.requests.cpu" }}
{{- end }}
{{- $taken := list "bundle" "models" "watch_s" "model_name" "provider" "devices" "address" "metrics_port" "http_address" "http_api" "drain_s" "drain_delay_s" "max_connection_age_s" "tls_cert" "tls_key" "tls_client_ca" "token_file" }}
{{- range $name, $value := .settings }}
{{- if has $name $taken }}
{{- fail (printf "settings.%s is set by the chart: use the chart's own value for it" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
