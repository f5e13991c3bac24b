// Package meter counts what AWS bills, and turns counts into money.
//
// Counting: a [Meter] adds up what the invocations of one Lambda process use. It wraps the
// store ([Meter.Store]) and the connections ([Meter.Clients], [Meter.Runners]). Each
// invocation gets its own share, and metrics for its log line in CloudWatch's embedded metric
// format. [EstimateStore] estimates for any store what DynamoDB would have billed.
//
// Money: [Units] are the counts. [Prices] has the price of each, with a date, and
// [Prices.Bill] makes the bill. [Habits] are assumptions, for bills in advance.
//
// The package calls no AWS API, reads no environment, and writes nothing. A bill leaves out free
// tiers, discounts, taxes, workspaces in S3, schedules, and costs that do not depend on messages
// (keys, alarms, a domain).
package meter
