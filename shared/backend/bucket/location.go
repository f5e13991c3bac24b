package bucket

import (
	"cmp"
	"net/url"
	"regexp"
	"strings"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Location says where snapshots are kept.
type Location struct {
	Bucket   string // 3 to 63 lower-case letters, digits and "-"; dots would not fit the certificate
	Prefix   string // prefix of all objects, without slashes at its ends; "" for none
	Region   string
	Endpoint string // URL of an S3 outside of AWS, "" for AWS
}

// LocationForm is the syntax of a location, for error messages.
const LocationForm = "BUCKET[/PREFIX][?endpoint=URL&region=NAME]"

// ParseLocation reads a location in the form of [LocationForm]. region is the default
// region. If neither text nor region names one, a location with an endpoint is in
// us-east-1.
//
// Errors: Invalid; the message names the wrong part.
func ParseLocation(text, region string) (Location, error) {
	where, query, _ := strings.Cut(text, "?")
	settings, err := url.ParseQuery(query)
	if err != nil {
		return Location{}, storage.Errorf(storage.Invalid, "the settings after %q are malformed; want %s", where+"?", LocationForm).Because(err)
	}
	for name, values := range settings {
		if name != "endpoint" && name != "region" || len(values) != 1 {
			return Location{}, storage.Errorf(storage.Invalid, "%q is not a setting of a bucket, or is there twice; want %s", name, LocationForm)
		}
	}
	p := Location{Endpoint: strings.TrimSuffix(settings.Get("endpoint"), "/"), Region: cmp.Or(settings.Get("region"), region)}
	p.Bucket, p.Prefix, _ = strings.Cut(where, "/")
	p.Prefix = strings.TrimSuffix(p.Prefix, "/")
	if p.Endpoint != "" {
		p.Region = cmp.Or(p.Region, "us-east-1")
	}
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$`).MatchString(p.Bucket) {
		return Location{}, storage.Errorf(storage.Invalid, "%q is no name of a bucket: want 3 to 63 lower-case letters, digits and -", p.Bucket)
	}
	if !regexp.MustCompile(`^([A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*)?$`).MatchString(p.Prefix) || len(p.Prefix) > 200 {
		return Location{}, storage.Errorf(storage.Invalid, "%q is no prefix: want up to 200 letters, digits, _ and -, with single slashes between", p.Prefix)
	}
	if u, err := url.Parse(p.Endpoint); p.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return Location{}, storage.Errorf(storage.Invalid, "%q is no endpoint: want http://HOST:PORT or https://HOST", p.Endpoint)
	}
	if p.Region == "" {
		return Location{}, storage.Errorf(storage.Invalid, "the region of bucket %q is not known: write %s?region=NAME, or set AWS_REGION", p.Bucket, where)
	}
	return p, nil
}
