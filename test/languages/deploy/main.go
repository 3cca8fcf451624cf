// Reads what deploys the server, as the programs read it that install it. Prints JSON for the tests.
//
//	compose FILE [PROFILE…]     the services of docker compose
//	chart FOLDER [VALUES…]      the manifests that Helm renders, with JSON of values
//	manifests FILE              the manifests of a file
//
// Manifests are decoded strictly: a field that Kubernetes or the operator of Prometheus does not know is an error.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	result, err := run(os.Args[1], os.Args[2], os.Args[3:])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(command, path string, rest []string) (any, error) {
	switch command {
	case "compose":
		return compose(path, rest)
	case "chart":
		return chart(path, rest)
	case "manifests":
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		return manifests(content)
	}
	return nil, fmt.Errorf("unknown command %q", command)
}

func compose(file string, profiles []string) (any, error) {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithWorkingDirectory(filepath.Dir(file)),
		cli.WithName("anabranch"), cli.WithProfiles(profiles))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}

func chart(folder string, values []string) (any, error) {
	given := map[string]any{}
	for _, text := range values {
		var each map[string]any
		if err := json.Unmarshal([]byte(text), &each); err != nil {
			return nil, err
		}
		given = loader.MergeMaps(given, each)
	}
	for _, message := range lint.RunAll(folder, given, "training").Messages {
		if message.Severity >= support.WarningSev {
			return nil, errors.New(message.Error())
		}
	}
	loaded, err := loader.Load(folder)
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: "anabranch", Namespace: "training", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, given, release, nil)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Engine{Strict: true}.Render(loaded, all)
	if err != nil {
		return nil, err
	}
	found := []runtime.Object{}
	for name, text := range rendered {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		each, err := manifests([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, text)
		}
		found = append(found, each...)
	}
	return found, nil
}

func manifests(content []byte) ([]runtime.Object, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, autoscaling.AddToScheme, batch.AddToScheme,
		core.AddToScheme, networking.AddToScheme, policy.AddToScheme, monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	found := []runtime.Object{}
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		found = append(found, object)
	}
}
