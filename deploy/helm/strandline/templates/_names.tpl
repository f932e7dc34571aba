{{- define "strandline.name" -}}
{{- if contains "strandline" .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-strandline" .Release.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "strandline.selector" -}}
app.kubernetes.io/name: strandline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "strandline.protocol" -}}
{{- $protocol := .Values.protocol | default (ternary "SSL" "PLAINTEXT" (ne .Values.tls.secret "")) -}}
{{- if and (hasSuffix "SSL" $protocol) (not .Values.tls.secret) }}{{ fail (printf "protocol %s needs tls.secret" $protocol) }}{{ end -}}
{{- if and .Values.tls.secret (not (hasSuffix "SSL" $protocol)) }}{{ fail (printf "protocol %s does not use tls.secret" $protocol) }}{{ end -}}
{{- $protocol }}
{{- end }}

{{- define "strandline.metricsScheme" -}}
{{- if and .Values.tls.metrics (not .Values.tls.secret) }}{{ fail "tls.metrics needs tls.secret" }}{{ end -}}
{{- ternary "https" "http" .Values.tls.metrics }}
{{- end }}

{{- define "strandline.labels" -}}
{{ include "strandline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
