package boot

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws/arn"

	"github.com/dormouse-mcp/dormouse/functions/wiring"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	// maxNames is the largest number of parameters in one request to Systems Manager.
	maxNames = 10
	// maxSecrets limits the bytes of a response. A response with maxNames values is smaller.
	maxSecrets = 1 << 20
)

// Resolver returns the function for Resolve in a relayserver.Config. That function reads the secrets
// that the env of a box's server refers to. It returns them as environment variables for the runner,
// the program in the box. It makes one request for ten parameters of Systems Manager, and one for
// each secret of Secrets Manager. If AWS refuses a request, it returns only the variable
// serversfile.SecretFailure, with the reason.
//
// Under the emulator, the function returns nothing.
//
// The code of an error is Unavailable.
func Resolver(f *wiring.Function) func(context.Context, storage.Box) (map[string]string, error) {
	return func(ctx context.Context, b storage.Box) (map[string]string, error) {
		if os.Getenv(EnvLocal) != "" {
			return nil, nil
		}
		s, _ := f.Servers.Server(b.Server)
		return resolve(ctx, s.References())
	}
}

func resolve(ctx context.Context, references map[string]string) (map[string]string, error) {
	var parameters []string
	secrets := map[secretVersion]string{}
	for _, reference := range references {
		switch service, name, _ := serversfile.Reference(reference); service {
		case "ssm":
			parameters = append(parameters, name)
		default:
			version, _ := parseSecret(name)
			secrets[version] = ""
		}
	}
	slices.Sort(parameters)
	values := map[string]string{}
	for names := range slices.Chunk(slices.Compact(parameters), maxNames) {
		if refused, err := readParameters(ctx, names, values); refused != "" || err != nil {
			return failure(refused), err
		}
	}
	for version := range secrets {
		value, refused, err := readSecret(ctx, version)
		if refused != "" || err != nil {
			return failure(refused), err
		}
		secrets[version] = value
	}
	env := make(map[string]string, len(references))
	for _, variable := range slices.Sorted(maps.Keys(references)) {
		service, name, _ := serversfile.Reference(references[variable])
		value, ok := values[name]
		if service != "ssm" {
			version, key := parseSecret(name)
			value, ok = member(secrets[version], key)
		}
		if !ok {
			return failure(fmt.Sprintf("%s has no value of this name", references[variable])), nil
		}
		env[serversfile.SecretVariable(variable)] = value
	}
	return env, nil
}

// failure returns the variables of a runner whose server cannot get its secrets.
func failure(why string) map[string]string {
	return map[string]string{serversfile.SecretFailure: why}
}

// readParameters adds the values of at most maxNames parameters to values. If Systems Manager does
// not give one of them, the result refused says why.
func readParameters(ctx context.Context, names []string, values map[string]string) (refused string, err error) {
	var answer struct {
		Parameters        []struct{ Name, ARN, Selector, Value string }
		InvalidParameters []string
	}
	refused, err = Ask(ctx, "ssm", "AmazonSSM.GetParameters", map[string]any{"Names": names, "WithDecryption": true}, &answer)
	if refused != "" || err != nil {
		return refused, err
	}
	if len(answer.InvalidParameters) > 0 {
		return "Systems Manager has no parameter " + strings.Join(answer.InvalidParameters, ", "), nil
	}
	for _, p := range answer.Parameters {
		values[p.Name+p.Selector], values[p.ARN+p.Selector] = p.Value, p.Value
	}
	return "", nil
}

type secretVersion struct {
	SecretID     string `json:"SecretId"`
	VersionStage string `json:"VersionStage,omitempty"`
	VersionID    string `json:"VersionId,omitempty"`
}

// parseSecret parses NAME[:KEY[:STAGE[:VERSION]]], the form that ECS uses. NAME may be an ARN.
func parseSecret(name string) (v secretVersion, key string) {
	prefix := ""
	if a, err := arn.Parse(name); err == nil {
		resource := strings.TrimPrefix(a.Resource, "secret:")
		prefix, name = strings.TrimSuffix(name, resource), resource
	}
	parts := append(strings.SplitN(name, ":", 4), "", "", "")
	return secretVersion{prefix + parts[0], parts[2], parts[3]}, parts[1]
}

func readSecret(ctx context.Context, v secretVersion) (value, refused string, err error) {
	var answer struct{ SecretString *string }
	refused, err = Ask(ctx, "secretsmanager", "secretsmanager.GetSecretValue", v, &answer)
	switch {
	case refused != "" || err != nil:
		return "", refused, err
	case answer.SecretString == nil:
		return "", "the secret " + v.SecretID + " is binary, and a variable is text", nil
	}
	return *answer.SecretString, "", nil
}

// member returns a member of a secret that is a JSON object. For key "" it returns the whole
// secret.
func member(secret, key string) (value string, ok bool) {
	if key == "" {
		return secret, true
	}
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(secret), &members) != nil || members[key] == nil {
		return "", false
	}
	if json.Unmarshal(members[key], &value) != nil {
		value = string(members[key])
	}
	return value, true
}

// Ask sends a request to an AWS service that speaks JSON, and decodes the response into answer. If
// the service will never accept this request, the result refused says why. The response may contain
// secrets, so errors do not quote it. The code of an error is Unavailable.
func Ask(ctx context.Context, service, operation string, q, answer any) (refused string, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return "", err
	}
	a, err := Service(service).JSON(ctx, operation, body, maxSecrets)
	var fault struct {
		Type  string `json:"__type"`
		Lower string `json:"message"`
		Upper string `json:"Message"`
	}
	if err == nil && a.Status != http.StatusOK {
		_ = json.Unmarshal(a.Body, &fault) // without a type the error becomes Unavailable below
		kind := fault.Type[strings.LastIndex(fault.Type, "#")+1:]
		switch kind {
		case "AccessDeniedException", "ResourceNotFoundException", "ParameterNotFound", "ValidationException", "InvalidParameterException",
			"InvalidRequestException", "DecryptionFailure", "InvalidKeyId", "ParameterVersionNotFound":
			return strings.TrimSuffix(fmt.Sprintf("%s: %s%s", kind, fault.Lower, fault.Upper), ": "), nil
		}
		return "", storage.Errorf(storage.Unavailable, "%s: status %d %s", operation, a.Status, kind)
	}
	if err != nil {
		return "", storage.Errorf(storage.Unavailable, "%s had no answer", operation).Because(err)
	}
	if json.Unmarshal(a.Body, answer) != nil {
		return "", storage.Errorf(storage.Unavailable, "the answer to %s is not as documented", operation)
	}
	return "", nil
}
