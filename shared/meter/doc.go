// Package meter counts what is billed and turns counts into money.
//
// Counting: a [Meter] adds up what the invocations of one function process use (the
// store by way of [Meter.Store], messages by way of [Meter.Clients]), and gives each
// its own share as attributes of its log line, in CloudWatch's embedded metric
// format. [ReadLine] takes such a line apart again. [EstimateStore] says of any store
// what DynamoDB would have billed for it.
//
// Money: [Units] are the counts, [Prices] what one of each costs, with their date, and
// [Prices.Bill] the bill. [Operation] and [Habits] are for bills of what has not
// happened yet, and [AlwaysOn] and [DurableObject] what others would charge for it.
//
// It does not know AWS's APIs, reads no environment, and writes nothing: its
// attributes stand in lines that others write. Free tiers, discounts and taxes are in
// no bill, nor is what costs the same without a message (keys, alarms, a domain), nor
// what others keep for it (workspaces in S3, schedules).
package meter
