"""Runs ministack, an emulator of AWS, as its settings in the environment say.

Arguments: types of resources that it does not know. They are made, and do nothing. An
alarm over several metrics, which it does not know either, watches one that is its own.

It judges some requests by another resource than AWS does. Here they have the resource, the
condition and the second right of AWS's Service Authorization Reference. Generated secrets
have the characters that the template asks for, an image that is not there is an error,
AWS::Serverless knows the parameters' values, and functions and custom resources know where
the emulator is: the file that VARIABLES_FILE names has what functions have beside their own
variables, as JSON, with AWS_ENDPOINT_URL.
"""

import contextvars
import json
import os
import random
import string
import sys

from ministack.app import main
from ministack.core import iam_actions, iam_evaluator
from ministack.services import ec2, ecr, lambda_svc
from ministack.services.cloudformation import changesets, custom_resource, engine, provisioners
from ministack.services.cloudformation import handlers as handlers_of_requests
from samtranslator.translator import transform

handlers = provisioners._RESOURCE_HANDLERS
kinds, sys.argv[1:] = sys.argv[1:], []
for kind in kinds:
    if kind in handlers:
        sys.exit(f"ministack knows {kind}")
    handlers[kind] = {
        "create": lambda name, properties, stack: (f"{stack}-{name}", {}),
        "update": lambda id, old, new, stack: (id, {}),
        "delete": lambda id, properties: None,
    }

record = provisioners._cw_metric_alarm_record


def alarm(name, properties):
    if properties.get("Metrics"):
        properties = {**properties, "Namespace": name, "MetricName": name, "Statistic": "Sum", "Period": 300}
        del properties["Metrics"]
    return record(name, properties)


provisioners._cw_metric_alarm_record = alarm


def secret(properties):
    asked = properties.get("GenerateSecretString")
    if not asked:
        return properties.get("SecretString", "")
    kinds = {"Lowercase": string.ascii_lowercase, "Uppercase": string.ascii_uppercase, "Numbers": string.digits, "Punctuation": string.punctuation}
    letters = "".join(all for kind, all in kinds.items() if not asked.get("Exclude" + kind))
    letters = [c for c in letters if c not in asked.get("ExcludeCharacters", "")]
    return "".join(random.choices(letters, k=asked.get("PasswordLength", 32)))


provisioners._sm_secret_string = secret

resource_of, context_of, allowed = iam_actions.extract_resource_arn, iam_actions.request_tag_context, iam_evaluator.enforce
passed = contextvars.ContextVar("passed", default=None)  # the role that a request passes, and to whom


def resource(service, method, path, headers, body, params, region, account):
    passed.set(None)
    fields = json.loads(body) if body[:1] == b"{" else {}
    if service == "ecs":
        role = fields.get("executionRoleArn") or fields.get("overrides", {}).get("executionRoleArn")
        if role:
            passed.set((role, "ecs-tasks.amazonaws.com"))
        name = fields.get("family") or fields.get("taskDefinition")
        if name and not name.startswith("arn:"):
            return f"arn:aws:ecs:{region}:{account}:task-definition/{name}:1"
        if name:
            return name
        task = fields.get("task") or (fields.get("tasks") or [""])[0]
        if task:
            return task if task.startswith("arn:") else f"arn:aws:ecs:{region}:{account}:task/{fields['cluster']}/{task}"
        if method == "POST" and headers.get("x-amz-target", "").endswith(".ListTasks"):
            return "*"
    if service == "ssm" and (fields.get("Names") or fields.get("Name")):
        name = fields.get("Name") or fields["Names"][0]
        return f"arn:aws:ssm:{region}:{account}:parameter/{name.removeprefix('/')}"
    if service == "scheduler" and path.startswith("/schedules/"):
        if "Target" in fields:
            passed.set((fields["Target"]["RoleArn"], "scheduler.amazonaws.com"))
        group = fields.get("GroupName") or params.get("groupName") or "default"
        group = group[0] if isinstance(group, list) else group
        return f"arn:aws:scheduler:{region}:{account}:schedule/{group}/{path.split('/')[2]}"
    return resource_of(service, method, path, headers, body, params, region, account)


def context(service, action, body, params):
    more = {}
    if service == "ecs" and body[:1] == b"{":
        cluster = json.loads(body).get("cluster", "")
        if cluster and not cluster.startswith("arn:"):
            from ministack.core.responses import get_account_id, get_region

            cluster = f"arn:aws:ecs:{get_region()}:{get_account_id()}:cluster/{cluster}"
        if cluster:
            more["ecs:cluster"] = cluster
    return {**context_of(service, action, body, params), **more}


def enforce(key, action, service, region, resource_arn="*", service_context=None):
    denied = allowed(key, action, service, region, resource_arn=resource_arn, service_context=service_context)
    role = passed.get()
    if denied or not role:
        return denied
    passed.set(None)
    return allowed(key, "iam:PassRole", "iam", region, resource_arn=role[0], service_context={"iam:PassedToService": role[1]})


iam_actions.extract_resource_arn, iam_actions.request_tag_context, iam_evaluator.enforce = resource, context, enforce

condition = iam_evaluator._resolve_condition_key
# On AWS each connection is encrypted, and here none.
iam_evaluator._resolve_condition_key = lambda key, of: "true" if key.lower() == "aws:securetransport" else condition(key, of)

values = contextvars.ContextVar("values", default={})
transforms, translate = engine._apply_transforms, transform.transform


def apply(template, provided=None, previous=None):
    values.set(engine._transform_parameters(template, provided, previous))
    return transforms(template, provided, previous)


transform.transform = lambda template, _, loader: translate(template, values.get(), loader)
for module in (engine, changesets, handlers_of_requests):
    module._apply_transforms = apply

images = ecr._describe_images


def describe_images(data):
    status, headers, body = images(data)
    if status == 200 and len(json.loads(body)["imageDetails"]) < len(data.get("imageIds") or []):
        return ecr.error_response_json("ImageNotFoundException", "The image does not exist", 400)
    return status, headers, body


ecr._describe_images = describe_images

# What AWS refuses and ministack takes.
def strict(kind, operation, judge):
    known = handlers[kind][operation]

    def judged(*args, **more):
        judge(next(a for a in reversed(args) if isinstance(a, dict)))
        return known(*args, **more)

    handlers[kind][operation] = judged


def function(properties):
    variables = properties.get("Environment", {}).get("Variables", {})
    if sum(len(str(name)) + len(str(value)) for name, value in variables.items()) > 4096:
        raise ValueError("the environment variables you have provided exceeded the 4KB limit")
    image = (properties.get("Code") or {}).get("ImageUri", "")
    name, _, tag = image.partition("/")[2].rpartition(":")
    if image and not ecr._find_image(name, {"imageTag": tag}):
        raise ValueError(f"Source image {image} does not exist")


def network(properties):
    if len(ec2._vpcs) >= 5:
        raise ValueError("VpcLimitExceeded: The maximum number of VPCs has been reached")


for operation in ("create", "update"):
    strict("AWS::Lambda::Function", operation, function)
strict("AWS::EC2::VPC", "create", network)

environment = lambda_svc._provided_worker_env


def variables():
    with open(os.environ["VARIABLES_FILE"], encoding="utf-8") as file:
        return json.load(file)


lambda_svc._provided_worker_env = lambda *args: {**environment(*args), **variables()}
custom_resource._gateway_url = lambda: variables()["AWS_ENDPOINT_URL"]
main()
