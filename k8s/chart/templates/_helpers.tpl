{{- /* The data of a ConfigMap or Secret, and more entries over it. An entry that is no text is written as JSON. */}}
{{- define "director.data" -}}
{{- $data := include .of .context | fromYaml }}
{{- range $name, $value := .more }}
{{- $_ := set $data $name (ternary $value (toJson $value) (kindIs "string" $value)) }}
{{- end }}
{{- toYaml $data }}
{{- end }}

{{- /* The lines of secrets.env whose names match. */}}
{{- define "director.secret" -}}
{{- $data := dict }}
{{- range splitList "\n" .env }}
{{- if regexMatch (printf "^(%s)=" $.names) . }}
{{- $line := splitn "=" 2 (trimSuffix "\r" .) }}
{{- $_ := set $data $line._0 (b64enc $line._1) }}
{{- end }}
{{- end }}
{{- toYaml $data }}
{{- end }}
