{{- define "warmpath.modelConfig" -}}
{{- $c := .Values.modelCache -}}
model:
  repository: {{ required "modelCache.enabled needs modelCache.repository: where the weights are" $c.repository | quote }}
  revision: {{ $c.revision | quote }}
  expectedDigest: {{ required "modelCache.enabled needs modelCache.expectedDigest: modelcache manifest says it" $c.expectedDigest | quote }}
cache:
  nodeLocalPath: {{ $c.nodeLocalPath }}
  maxSizeGiB: {{ $c.maxSizeGiB }}
  evictionPolicy: {{ $c.evictionPolicy }}
{{- with $c.source }}
source: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $c.fetch }}
fetch: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "warmpath.modelCacheContainer" -}}
image: {{ include "warmpath.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [/modelcache]
{{- with .Values.modelCache.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
resources: {{- toYaml .Values.modelCache.resources | nindent 2 }}
{{- /* The directory on the node is root's, and so are its files: no capability is needed for that. */}}
securityContext: {{- toYaml (merge (dict "runAsUser" .Values.modelCache.podSecurityContext.runAsUser) .Values.modelCache.securityContext) | nindent 2 }}
volumeMounts:
  - {name: models, mountPath: {{ .Values.modelCache.nodeLocalPath }}}
  - {name: model-config, mountPath: /etc/modelcache, readOnly: true}
{{- end }}

{{- define "warmpath.modelCacheVolumes" -}}
- name: models
  hostPath: {path: {{ .Values.modelCache.nodeLocalPath }}, type: DirectoryOrCreate}
- name: model-config
  configMap: {name: {{ include "warmpath.fullname" . }}-model}
{{- end }}
