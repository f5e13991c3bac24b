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
	"github.com/dormouse-mcp/dormouse/shared/backend/awscall"
	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

const (
	// maxNames is how many parameters Systems Manager returns in one answer.
	maxNames = 10
	// maxSecrets is more than an answer with as many values may have.
	maxSecrets = 1 << 20
)

// Resolver returns the Resolve of a relayserver.Config for a function: it returns the variables
// of the runner of a box, with the values of the secrets that the env of the box's server names.
// It makes no request for a server that names none, one for up to ten parameters of Systems
// Manager, and one for each secret of Secrets Manager. If AWS refuses a name,
// serversfile.SecretFailure has the reason in place of the values.
//
// Under the emulator there are no such secrets, and no variables.
//
// Errors: Unavailable.
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

// failure returns the variables of a runner whose server cannot have its secrets.
func failure(why string) map[string]string {
	return map[string]string{serversfile.SecretFailure: why}
}

// readParameters adds the values of up to ten parameters to values. refused is why Systems
// Manager does not give one.
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

// parseSecret reads NAME[:KEY[:STAGE[:VERSION]]], as ECS does. NAME may be an ARN.
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

// member returns the member of a secret's JSON object, or the whole secret for "".
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

// Ask sends a request to a service of AWS that speaks JSON. refused says why the service
// will never do it. The answer may hold secrets, so no error quotes it.
//
// Errors: Unavailable.
func Ask(ctx context.Context, service, operation string, q, answer any) (refused string, err error) {
	body, err := json.Marshal(q)
	if err != nil {
		return "", err
	}
	s := Service(service)
	a, err := s.Do(ctx, awscall.Request{
		Method: http.MethodPost, URL: s.Endpoint + "/", Body: body,
		Header: http.Header{"Content-Type": {"application/x-amz-json-1.1"}, "X-Amz-Target": {operation}},
	}, maxSecrets)
	var fault struct {
		Type  string `json:"__type"`
		Lower string `json:"message"`
		Upper string `json:"Message"`
	}
	if err == nil && a.Status != http.StatusOK {
		_ = json.Unmarshal(a.Body, &fault) // an answer without a type counts as Unavailable below
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
