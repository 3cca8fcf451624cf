{{- define "anabranch.name" -}}
{{ if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{- define "anabranch.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "anabranch.backupSelector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-backup
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "anabranch.labels" -}}
{{ include "anabranch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "anabranch.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "anabranch.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "anabranch.containerSecurity" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: { drop: [ALL] }
{{- end }}

{{- define "anabranch.databaseUrl" -}}
- name: DATABASE_URL
  valueFrom: { secretKeyRef: { name: {{ .Values.database.postgres.secret }}, key: {{ .Values.database.postgres.key }} } }
{{- with .Values.database.postgres.directKey }}
- name: ANABRANCH_DIRECT_DATABASE
  valueFrom: { secretKeyRef: { name: {{ $.Values.database.postgres.secret }}, key: {{ . }} } }
{{- end }}
{{- end }}

{{- define "anabranch.claim" -}}
{{ .Values.database.sqlite.claim | default (include "anabranch.name" .) }}
{{- end }}

{{- define "anabranch.probeScheme" -}}
{{ if .Values.tls.disabled }}HTTP{{ else }}HTTPS{{ end }}
{{- end }}
