{{- define "naiad.name" -}}
{{- if contains "naiad" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-naiad" (.Release.Name | trunc 50 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "naiad.selector" -}}
app.kubernetes.io/name: naiad
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "naiad.labels" -}}
{{ include "naiad.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "naiad.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "naiad.name" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "naiad.scheme" -}}
{{ if .Values.tls.existingSecret }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}

{{/* A probe. With client certificates the kubelet cannot speak HTTP, so it only connects. */}}
{{- define "naiad.probe" -}}
{{- if and .root.Values.tls.existingSecret .root.Values.tls.mutual }}
tcpSocket: {port: http}
{{- else }}
httpGet: {path: {{ .path }}, port: http, scheme: {{ include "naiad.scheme" .root }}}
{{- end }}
{{ toYaml .probe }}
{{- end }}
