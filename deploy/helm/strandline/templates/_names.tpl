{{- define "strandline.name" -}}
{{- if contains "strandline" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-strandline" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "strandline.selector" -}}
app.kubernetes.io/name: strandline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "strandline.labels" -}}
{{ include "strandline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
