// Renders the chart with Go's text/template and sprig, which are what Helm uses, for machines that
// have no helm. `helm template` does more: it checks values.schema.json and orders the manifests.
//
//	go run render.go CHART RELEASE NAMESPACE [VALUES.yaml...]
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type object = map[string]interface{}

func main() {
	if len(os.Args) < 4 {
		fail(fmt.Errorf("usage: render CHART RELEASE NAMESPACE [VALUES.yaml...]"))
	}
	chart, release, namespace := os.Args[1], os.Args[2], os.Args[3]
	values := object{}
	for _, path := range append([]string{filepath.Join(chart, "values.yaml")}, os.Args[4:]...) {
		merge(values, read(path))
	}
	about := read(filepath.Join(chart, "Chart.yaml"))
	context := object{
		"Values":  values,
		"Chart":   object{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
		"Release": object{"Name": release, "Namespace": namespace, "Service": "Helm"},
	}
	paths, _ := filepath.Glob(filepath.Join(chart, "templates", "*"))
	sort.Strings(paths)
	root := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text bytes.Buffer
		err := root.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) string {
		text, err := yaml.Marshal(value)
		if err != nil {
			return ""
		}
		return strings.TrimSuffix(string(text), "\n")
	}
	root.Funcs(functions)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		fail(err)
		_, err = root.New(filepath.Base(path)).Parse(string(text))
		fail(err)
	}
	for _, path := range paths {
		if name := filepath.Base(path); strings.HasSuffix(name, ".yaml") {
			var text bytes.Buffer
			fail(root.ExecuteTemplate(&text, name, context))
			fmt.Printf("---\n# Source: %s\n%s\n", name, text.String())
		}
	}
}

func read(path string) object {
	text, err := os.ReadFile(path)
	fail(err)
	values := object{}
	fail(yaml.Unmarshal(text, &values))
	return values
}

func merge(into, from object) {
	for key, value := range from {
		old, isObject := into[key].(object)
		if entry, ok := value.(object); ok && isObject {
			merge(old, entry)
		} else {
			into[key] = value
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
