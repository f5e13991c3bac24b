package dynamostore

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Location says where a table is.
type Location struct {
	Table    string // 3 to 255 characters: letters, digits, "_", "-" and "."
	Region   string
	Endpoint string // URL of a DynamoDB that is not AWS's own, "" for AWS's
}

// LocationForm is the syntax of a location, for error messages.
const LocationForm = "TABLE[?endpoint=URL&region=NAME]"

// ParseLocation parses a location in the syntax of [LocationForm]. region is the default for a
// location that names none. If region is empty too, a location with an endpoint gets
// us-east-1, because DynamoDB Local takes every region.
//
// Errors: Invalid, with the part that is wrong and why.
func ParseLocation(text, region string) (Location, error) {
	table, query, _ := strings.Cut(text, "?")
	settings, err := url.ParseQuery(query)
	if err != nil {
		return Location{}, storage.Errorf(storage.Invalid, "the settings after %q are malformed; want %s", table+"?", LocationForm).Because(err)
	}
	p := Location{Table: table, Endpoint: settings.Get("endpoint")}
	p.Region = cmp.Or(settings.Get("region"), region)
	if p.Endpoint != "" {
		p.Region = cmp.Or(p.Region, "us-east-1")
	}
	for name, values := range settings {
		if name != "endpoint" && name != "region" || len(values) != 1 {
			return Location{}, storage.Errorf(storage.Invalid, "%q is not a setting of a table, or is there twice; want %s", name, LocationForm)
		}
	}
	if !isTable(table) {
		return Location{}, storage.Errorf(storage.Invalid, "%q is no name of a table: want 3 to 255 letters, digits, _, - and .", table)
	}
	if u, err := url.Parse(p.Endpoint); p.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return Location{}, storage.Errorf(storage.Invalid, "%q is no endpoint: want http://HOST:PORT or https://HOST", p.Endpoint)
	}
	if p.Region == "" {
		return Location{}, storage.Errorf(storage.Invalid, "the region of table %q is not known: write %s?region=NAME, or set AWS_REGION", table, table)
	}
	return p, nil
}

// isTable reports whether DynamoDB allows name as the name of a table. It uses no regular
// expression, which would take half a millisecond of every cold start.
func isTable(name string) bool {
	return len(name) >= 3 && len(name) <= 255 && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-'
	})
}

// String returns the location in the syntax of [LocationForm], with its region.
func (p Location) String() string {
	settings := url.Values{"region": {p.Region}}
	if p.Endpoint != "" {
		settings.Set("endpoint", p.Endpoint)
	}
	return p.Table + "?" + settings.Encode()
}

// Keys are credentials that do not change while the program runs.
type Keys struct{ ID, Secret, Token string }

// Retrieve implements aws.CredentialsProvider.
func (k Keys) Retrieve(context.Context) (aws.Credentials, error) {
	c := aws.Credentials{AccessKeyID: k.ID, SecretAccessKey: k.Secret, SessionToken: k.Token}
	if !c.HasKeys() {
		return c, errors.New("there are no credentials for DynamoDB: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or sign in with the aws command")
	}
	return c, nil
}

// Client returns a client for the location. A nil transport means the default. At an endpoint, the zero
// [Keys] stand for some key: DynamoDB Local takes any.
func (p Location) Client(credentials aws.CredentialsProvider, transport dynamodb.HTTPClient) *dynamodb.Client {
	o := dynamodb.Options{Region: p.Region, Credentials: credentials, HTTPClient: transport}
	if p.Endpoint != "" {
		o.BaseEndpoint = &p.Endpoint
		if credentials == (Keys{}) {
			o.Credentials = Keys{ID: "local", Secret: "local"}
		}
	}
	return dynamodb.New(o)
}

// EnsureTable makes sure that the table exists, within the time of ctx. It creates a missing
// table at an endpoint (DynamoDB Local), and waits until it can be used. A missing table on
// AWS is an error, because a stack creates it there.
//
// Errors: NotFound (on AWS) with what to do, Unavailable.
func (p Location) EnsureTable(ctx context.Context, credentials aws.CredentialsProvider) error {
	client := p.Client(credentials, nil)
	_, err := client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &p.Table})
	var missing *types.ResourceNotFoundException
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &missing):
		return storage.Errorf(storage.Unavailable, "DynamoDB cannot be asked for table %q (region %s)", p.Table, p.Region).Because(err)
	case p.Endpoint == "":
		return storage.Errorf(storage.NotFound,
			"there is no table %q in region %s: sam deploy makes it, or create one with the properties in shared/store/dynamostore/table.json; a local one is named with ?endpoint=URL", p.Table, p.Region)
	}
	return p.createTable(ctx, client)
}

func (p Location) createTable(ctx context.Context, client *dynamodb.Client) error {
	create, live, err := TableDefinition(p.Table)
	if err != nil {
		return err
	}
	failed := func(err error) error {
		return storage.Errorf(storage.Unavailable, "table %q cannot be made at %s", p.Table, p.Endpoint).Because(err)
	}
	var exists *types.ResourceInUseException
	if _, err := client.CreateTable(ctx, create); err != nil && !errors.As(err, &exists) {
		return failed(err)
	}
	waiter := dynamodb.NewTableExistsWaiter(client, func(o *dynamodb.TableExistsWaiterOptions) { o.MinDelay = 100 * time.Millisecond })
	patience := time.Minute
	if until, ok := ctx.Deadline(); ok {
		patience = time.Until(until)
	}
	if err := waiter.Wait(ctx, &dynamodb.DescribeTableInput{TableName: &p.Table}, patience); err != nil {
		return failed(err)
	}
	if _, err := client.UpdateTimeToLive(ctx, live); err != nil {
		return failed(err)
	}
	return nil
}
