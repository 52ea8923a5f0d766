{{- define "warmpath.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* 40 characters leave room for the names of parts within the 63 of a label. */}}
{{- define "warmpath.fullname" -}}
{{- $name := include "warmpath.name" . }}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $full .Values.fullnameOverride | replace "." "-" | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "warmpath.selector" -}}
app.kubernetes.io/name: {{ include "warmpath.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Not for pods: another version of the chart alone must not restart engines, whose
     caches would be empty. */}}
{{- define "warmpath.labels" -}}
{{ include "warmpath.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "warmpath.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "warmpath.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "warmpath.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}
{{- end }}

{{/* kubernetes or dns: without rights to read EndpointSlices it can only be DNS. */}}
{{- define "warmpath.discovery" -}}
{{- if .Values.rbac.create }}{{ .Values.discovery.mode }}{{ else }}dns{{ end }}
{{- end }}

{{/* "true" if a source is to be watched in the cluster. */}}
{{- define "warmpath.watches" -}}
{{- $watches := and (eq (include "warmpath.discovery" .) "kubernetes") (or .Values.vllm.enabled .Values.mock.enabled .Values.replicas.services) }}
{{- range .Values.replicas.urls }}{{ if hasPrefix "kubernetes:" . }}{{ $watches = true }}{{ end }}{{ end }}
{{- if $watches }}true{{ end }}
{{- end }}

{{- define "warmpath.discoveryNamespace" -}}
{{ default .Release.Namespace .Values.discovery.namespace }}
{{- end }}

{{/* A JSON list of the replicas' sources, as replica.urls takes them. */}}
{{- define "warmpath.sources" -}}
{{- $root := . }}
{{- $urls := .Values.replicas.urls }}
{{- $own := list }}
{{- if .Values.vllm.enabled }}{{ $own = append $own (dict "name" (printf "%s-vllm" (include "warmpath.fullname" .)) "port" 8000 "namespace" .Release.Namespace) }}{{ end }}
{{- if .Values.mock.enabled }}{{ $own = append $own (dict "name" (printf "%s-mock" (include "warmpath.fullname" .)) "port" 8000 "namespace" .Release.Namespace) }}{{ end }}
{{- range .Values.replicas.services }}{{ $own = append $own (merge (dict "namespace" (include "warmpath.discoveryNamespace" $root)) .) }}{{ end }}
{{- $kubernetes := eq (include "warmpath.discovery" .) "kubernetes" }}
{{- range $own }}
{{- if $kubernetes }}
{{- $urls = append $urls (printf "kubernetes://%s/%s:%v" .namespace .name .port) }}
{{- else if regexMatch "^[0-9]+$" (toString .port) }}
{{- $urls = append $urls (printf "dns://%s.%s.svc.%s:%v" .name .namespace $root.Values.clusterDomain .port) }}
{{- else }}
{{- $urls = append $urls (printf "dns+srv://_%s._tcp.%s.%s.svc.%s" .port .name .namespace $root.Values.clusterDomain) }}
{{- end }}
{{- end }}
{{- if and $kubernetes $own (ne (include "warmpath.discoveryNamespace" .) .Release.Namespace) (or .Values.vllm.enabled .Values.mock.enabled) }}
{{- fail "discovery.namespace names another namespace, but vllm.enabled or mock.enabled put replicas into this release's: the gateway may watch one namespace only. Leave discovery.namespace empty, or set discovery.mode to dns." }}
{{- end }}
{{- if not $urls }}
{{- fail "no replicas: set replicas.urls or replicas.services to those that you have, vllm.enabled=true and vllm.model to have this chart start some, or mock.enabled=true to try it without a GPU." }}
{{- end }}
{{- toJson $urls }}
{{- end }}

{{- define "warmpath.redisURL" -}}
{{- if .Values.redis.url -}}
{{ .Values.redis.url }}
{{- else if .Values.redis.enabled -}}
redis://{{ include "warmpath.fullname" . }}-redis.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:6379
{{- end }}
{{- end }}

{{- define "warmpath.modelPath" -}}
{{ .Values.modelCache.nodeLocalPath }}/models/sha256-{{ trimPrefix "sha256:" .Values.modelCache.expectedDigest }}
{{- end }}

{{- define "warmpath.model" -}}
{{- if .Values.vllm.servedModelName }}{{ .Values.vllm.servedModelName }}
{{- else if .Values.vllm.model }}{{ .Values.vllm.model }}
{{- else if .Values.modelCache.enabled }}{{ .Values.modelCache.repository | trimSuffix "/" | base }}
{{- end }}
{{- end }}

{{/* The gateway's settings file. gateway.config has the last word. */}}
{{- define "warmpath.config" -}}
{{- $given := .Values.gateway.config }}
{{- range $key, $value := dict
  "listen" "the pod's ports, which are fixed" "admin" "the pod's ports, which are fixed"
  "drain_delay" "gateway.drainDelaySeconds" "drain_timeout" "gateway.drainTimeoutSeconds" }}
{{- if hasKey $given $key }}{{ fail (printf "gateway.config has %s, on which more than the gateway depends: it follows %s." $key $value) }}{{ end }}
{{- end }}
{{- range $path, $value := dict
  "admin_token" "auth.adminTokenSecret" "auth.salt_secret" "auth.saltSecret"
  "replica.key" "replicas.keySecret" "redis.password" "redis.passwordSecret" }}
{{- $section := ternary (get $given (splitList "." $path | first)) $given (contains "." $path) }}
{{- if and (kindIs "map" $section) (hasKey $section (splitList "." $path | last)) }}{{ fail (printf "gateway.config has %s, and everyone may read a ConfigMap: set %s." $path $value) }}{{ end }}
{{- end }}
{{- $c := dict
  "listen" ":8080"
  "admin" ":9090"
  "log_level" .Values.gateway.logLevel
  "log_format" .Values.gateway.logFormat
  "drain_delay" (printf "%ds" (int .Values.gateway.drainDelaySeconds))
  "drain_timeout" (printf "%ds" (int .Values.gateway.drainTimeoutSeconds))
  "replica" (dict "urls" (include "warmpath.sources" . | fromJsonArray))
  "router" (dict "policy" .Values.gateway.policy)
  "proxy" (dict "usage" .Values.gateway.usage)
  "redis" (dict "url" (include "warmpath.redisURL" .) "namespace" .Values.redis.namespace)
}}
{{- if .Values.tls.enabled }}{{ $_ := set $c "client" (dict "tls_cert" "/etc/warmpath/tls/tls.crt" "tls_key" "/etc/warmpath/tls/tls.key") }}{{ end }}
{{- if .Values.auth.keysSecret.name }}{{ $_ := set $c "auth" (dict "keys_file" (printf "/etc/warmpath/keys/%s" .Values.auth.keysSecret.key)) }}{{ end }}
{{- if .Values.redis.caSecret.name }}{{ $_ := set $c.redis "ca_file" (printf "/etc/warmpath/redis/%s" .Values.redis.caSecret.key) }}{{ end }}
{{- toYaml (mergeOverwrite $c (deepCopy .Values.gateway.config)) }}
{{- end }}

{{- define "warmpath.secretEnv" -}}
{{- if .secret.name }}
- name: {{ .env }}
  valueFrom: {secretKeyRef: {name: {{ .secret.name | quote }}, key: {{ .secret.key | quote }}}}
{{- end }}
{{- end }}
