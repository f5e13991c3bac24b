package ecs

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/dormouse-mcp/dormouse/shared/fleet"
)

// place is the description of a stack in one variable of a function's environment.
type place struct {
	Region         string   `json:"region"`
	Cluster        string   `json:"cluster"`
	Subnets        []string `json:"subnets"`
	SecurityGroups []string `json:"securityGroups"`
	PublicIP       bool     `json:"publicIp"`
	Spot           bool     `json:"spot"`
	ExecutionRole  string   `json:"executionRole"`
	Family         string   `json:"family"`
	LogGroup       string   `json:"logGroup"`
	Image          string   `json:"image"`
	CPUs           float64  `json:"cpus"`
	MemoryMB       int      `json:"memoryMb"`
	Arch           string   `json:"arch"`
	Endpoint       string   `json:"endpoint"`
}

// ParsePlace reads a Config from the form that template.yaml writes: one JSON object
// whose keys are the fields of Config with a small first letter. The key endpoint is only
// for a stack that is not on AWS; on AWS the caller sets Endpoint. The caller also sets
// Credentials, HTTPClient and Shape. Errors: fleet.ErrInvalid for text that is no such
// object; [New] checks the values.
func ParsePlace(text string) (Config, error) {
	var p place
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Config{}, fmt.Errorf("%w: the description of the place is not as the template writes it: %w", fleet.ErrInvalid, err)
	}
	if d.More() {
		return Config{}, fmt.Errorf("%w: the description of the place goes on after its end", fleet.ErrInvalid)
	}
	return Config{
		Region: p.Region, Cluster: p.Cluster, Subnets: p.Subnets, SecurityGroups: p.SecurityGroups, PublicIP: p.PublicIP, Spot: p.Spot,
		ExecutionRole: p.ExecutionRole, Family: p.Family, LogGroup: p.LogGroup, Image: p.Image,
		Size: Size{CPUs: p.CPUs, MemoryMB: p.MemoryMB}, Arch: p.Arch, Endpoint: p.Endpoint,
	}, nil
}
