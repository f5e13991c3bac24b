"""Writes the template that CloudFormation gets from AWS::Serverless, as JSON. A template without
the transform is only written as JSON.

Arguments: the template, then NAME=VALUE for parameters; CodeUri is where the code of
functions is. What the transform needs of AWS (managed policies, the region) is given to it, so that nothing is called.
"""

import json
import os
import sys

os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from samcli.yamlhelper import yaml_parse
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator

with open(sys.argv[1], encoding="utf-8") as file:
    template = yaml_parse(file.read())
if "Transform" not in template:  # of a nested stack, or of one without SAM
    json.dump(template, sys.stdout, indent=1, default=str)
    sys.exit()
parameters = {name: spec.get("Default", "") for name, spec in template["Parameters"].items()}
parameters.update(pair.split("=", 1) for pair in sys.argv[2:])
# As sam package leaves it.
code = parameters.pop("CodeUri", "s3://bucket/code")
template["Globals"]["Function"]["CodeUri"] = code
bucket, key = code.removeprefix("s3://").split("/", 1)
for resource in template["Resources"].values():
    if resource["Type"] == "AWS::Lambda::Function" and resource["Properties"]["Code"] == ".":
        resource["Properties"]["Code"] = {"S3Bucket": bucket, "S3Key": key + "-setup"}
    if resource["Type"] == "AWS::Serverless::LayerVersion":
        resource["Properties"]["ContentUri"] = code
translator = Translator(managed_policy_map={}, sam_parser=Parser())
json.dump(translator.translate(template, parameters), sys.stdout, indent=1, default=str)
