"""Steps of a stack's life on an emulator of AWS.

Its arguments are the endpoint, and the program of the function for custom resources. A line of its input is a step with what it takes, as a list in
JSON; it prints what came of each as a line of JSON:
  create TEMPLATE NAME=VALUE...   update TEMPLATE NAME=VALUE...   delete
  functions    the functions with their environments
  policies     all statements of all roles
  credentials ROLE    of a session of that role, by the beginning of its name
  zone         a hosted zone, which it makes
  schedules    names of all schedules
  tasks        all tasks of ECS
  code FUNCTION ZIP NAME=VALUE...    gives a function its program, and other variables; -
               keeps the program
  settings TABLE    those that a restore leaves off
  network      a VPC and its subnets, which it makes
  firewall GROUP    the VPC of a security group
  lose TABLE   deletes a table
  push REPOSITORY TAG    an image, which has nothing
  left         what is there, by service
"""

import functools
import io
import json
import sys
import time
import zipfile

import boto3

endpoint = sys.argv[1]
STACK = "dormouse"
RUNNER = "a runner"


@functools.cache
def client(service):
    return boto3.client(service, endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")


def pages(service, operation, member, **arguments):
    c = client(service)
    if c.can_paginate(operation):
        for page in c.get_paginator(operation).paginate(**arguments):
            yield from page[member]
    else:
        yield from getattr(c, operation)(**arguments)[member]


def code():
    """Puts what sam package would have uploaded where the template looks for it."""
    with open(sys.argv[2], "rb") as file:
        setup = file.read()
    s3 = client("s3")
    s3.create_bucket(Bucket="bucket")
    for key, program in {"code": b"#!/bin/sh\n", "code-setup": setup}.items():
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("bootstrap", program)
            file.writestr("runner", RUNNER)
        s3.put_object(Bucket="bucket", Key=key, Body=archive.getvalue())


def change(operation, template, *values):
    if operation == "create":
        code()
    with open(template, encoding="utf-8") as file:
        whole = json.load(file)
    for name, resource in whole["Resources"].items():
        nested = resource["Type"] == "AWS::CloudFormation::Stack" and resource["Properties"]
        if nested:  # as sam package leaves it
            with open("../../" + nested["TemplateURL"], "rb") as file:
                client("s3").put_object(Bucket="bucket", Key=name, Body=file.read())
            nested["TemplateURL"] = endpoint + "/bucket/" + name
    client("s3").put_object(Bucket="bucket", Key="template", Body=json.dumps(whole).encode())
    cloudformation = client("cloudformation")
    parameters = [dict(zip(("ParameterKey", "ParameterValue"), pair.split("=", 1))) for pair in values]
    begun = len(events()) if operation == "update" else 0
    getattr(cloudformation, operation + "_stack")(
        StackName=STACK, TemplateURL=endpoint + "/bucket/template", Capabilities=["CAPABILITY_IAM"], Parameters=parameters)
    return settled(begun)


def events():
    try:
        return list(reversed(list(pages("cloudformation", "describe_stack_events", "StackEvents", StackName=STACK))))
    except Exception:
        return []


def settled(begun):
    """Waits for the end, and returns it with what failed on the way."""
    while True:
        stack = client("cloudformation").describe_stacks(StackName=STACK)["Stacks"][0]
        if not stack["StackStatus"].endswith("IN_PROGRESS"):
            break
        time.sleep(0.1)
    return {
        "status": stack["StackStatus"],
        "failed": [f'{e["LogicalResourceId"]}: {e.get("ResourceStatusReason")}' for e in events()[begun:] if "FAILED" in e["ResourceStatus"]],
        "outputs": {o["OutputKey"]: o["OutputValue"] for o in stack.get("Outputs", [])},
        "resources": {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in pages("cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=STACK)},
    }


def delete():
    client("cloudformation").delete_stack(StackName=STACK)
    while any(s["StackStatus"] != "DELETE_COMPLETE" for s in client("cloudformation").list_stacks()["StackSummaries"]):
        time.sleep(0.1)


def functions():
    return {f["FunctionName"]: f.get("Environment", {}).get("Variables", {}) for f in pages("lambda", "list_functions", "Functions")}


def policies():
    iam, all_ = client("iam"), {}
    for role in pages("iam", "list_roles", "Roles"):
        name, statements = role["RoleName"], []
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            statements += iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]["Statement"]
        for policy in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
            version = iam.get_policy(PolicyArn=policy["PolicyArn"])["Policy"]["DefaultVersionId"]
            statements += iam.get_policy_version(PolicyArn=policy["PolicyArn"], VersionId=version)["PolicyVersion"]["Document"]["Statement"]
        all_[name] = statements
    return all_


def credentials(prefix):
    role = next(r for r in pages("iam", "list_roles", "Roles") if r["RoleName"].startswith(prefix))
    got = client("sts").assume_role(RoleArn=role["Arn"], RoleSessionName="test")["Credentials"]
    return {"key": got["AccessKeyId"], "secret": got["SecretAccessKey"], "token": got["SessionToken"]}


def zone():
    made = client("route53").create_hosted_zone(Name="example.com", CallerReference="test")
    return made["HostedZone"]["Id"].rsplit("/", 1)[-1]


def program(name, file, *values):
    lambda_ = client("lambda")
    if file != "-":
        with open(file, "rb") as code:
            lambda_.update_function_code(FunctionName=name, ZipFile=code.read())
    variables = lambda_.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
    variables.update(pair.split("=", 1) for pair in values)
    lambda_.update_function_configuration(FunctionName=name, Environment={"Variables": variables})


def settings(table):
    dynamodb = client("dynamodb")
    kept = dynamodb.describe_continuous_backups(TableName=table)["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
    return {
        "expires": dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"].get("AttributeName", ""),
        "recovers": kept["PointInTimeRecoveryStatus"],
    }


def network():
    """A network of the owner's: a VPC and its subnets."""
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    return {"vpc": vpc, "subnets": ",".join(ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.1.{n}.0/24")["Subnet"]["SubnetId"] for n in (1, 2))}


def firewall(group):
    """The VPC of a security group."""
    return client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["VpcId"]


def push(repository, tag):
    client("ecr").put_image(repositoryName=repository, imageTag=tag, imageManifest="{}")


def tasks():
    ecs, all_ = client("ecs"), []
    for cluster in pages("ecs", "list_clusters", "clusterArns"):
        arns = list(pages("ecs", "list_tasks", "taskArns", cluster=cluster))
        for task in ecs.describe_tasks(cluster=cluster, tasks=arns)["tasks"] if arns else []:
            defined = ecs.describe_task_definition(taskDefinition=task["taskDefinitionArn"])["taskDefinition"]
            all_.append({"family": defined["family"], "image": defined["containerDefinitions"][0]["image"], "execution": defined["executionRoleArn"],
                         "arn": task["taskArn"], "containers": defined["containerDefinitions"], "overrides": task["overrides"]["containerOverrides"]})
    return all_


def left():
    kinds = {
        "tables": ("dynamodb", "list_tables", "TableNames"), "functions": ("lambda", "list_functions", "Functions"),
        "roles": ("iam", "list_roles", "Roles"), "logs": ("logs", "describe_log_groups", "logGroups"),
        "parameters": ("ssm", "describe_parameters", "Parameters"), "secrets": ("secretsmanager", "list_secrets", "SecretList"), "clusters": ("ecs", "list_clusters", "clusterArns"),
        "repositories": ("ecr", "describe_repositories", "repositories"), "rest apis": ("apigateway", "get_rest_apis", "items"),
        "websocket apis": ("apigatewayv2", "get_apis", "Items"), "rules": ("events", "list_rules", "Rules"),
        "schedule groups": ("scheduler", "list_schedule_groups", "ScheduleGroups"), "topics": ("sns", "list_topics", "Topics"),
        "alarms": ("cloudwatch", "describe_alarms", "MetricAlarms"), "dashboards": ("cloudwatch", "list_dashboards", "DashboardEntries"),
        "buckets": ("s3", "list_buckets", "Buckets"),
        "domains": ("apigateway", "get_domain_names", "items"), "socket domains": ("apigatewayv2", "get_domain_names", "Items"),
        "networks": ("ec2", "describe_vpcs", "Vpcs"), "task definitions": ("ecs", "list_task_definitions", "taskDefinitionArns"),
        "schedules": ("scheduler", "list_schedules", "Schedules"), "stacks": ("cloudformation", "describe_stacks", "Stacks"),
    }
    return {kind: sorted(x if isinstance(x, str) else json.dumps(x, default=str) for x in pages(*of)) for kind, of in kinds.items()}


steps = {
    "create": functools.partial(change, "create"), "update": functools.partial(change, "update"), "delete": delete,
    "functions": functions, "policies": policies, "schedules": lambda: [s["Name"] for s in pages("scheduler", "list_schedules", "Schedules")], "tasks": tasks, "credentials": credentials, "zone": zone, "left": left,
    "code": program, "settings": settings, "network": network, "firewall": firewall, "push": push, "lose": lambda table: client("dynamodb").delete_table(TableName=table) and None,
}
for line in sys.stdin:
    step, *arguments = json.loads(line)
    print(json.dumps(steps[step](*arguments), default=str), flush=True)
