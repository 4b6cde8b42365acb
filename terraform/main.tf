# An Open Job Spec backend: the template of `make template`, and what is declared in it.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.60"
    }
  }
}

variable "template" {
  description = "Folder that make template wrote."
  type        = string
}

variable "bucket" {
  description = "Bucket in the region of the deployment that receives the files of the template."
  type        = string
}

variable "prefix" {
  description = "Prefix of their keys, with a slash at the end."
  type        = string
  default     = "ojs/"
}

variable "stage" {
  description = "Name of the deployment."
  type        = string
  default     = "dev"
}

variable "parameters" {
  description = "Other parameters of the template, for example AlarmEmail."
  type        = map(string)
  default     = {}
}

variable "queues" {
  description = "Configuration by queue. If you remove a queue here, it stays with its jobs."
  type        = any
  default     = {}
}

variable "pools" {
  description = "Worker pools by name."
  type        = any
  default     = {}
}

variable "crons" {
  description = "Cron jobs by name."
  type        = any
  default     = {}
}

variable "rate_limits" {
  description = "Overrides by rate limit key."
  type        = any
  default     = {}
}

variable "keys" {
  description = "Access keys by name. Each is in the secret ojs-STAGE/keys/NAME."
  type        = map(object({ scopes = list(string), queues = optional(list(string)) }))
  default     = {}
}

locals {
  file = "${var.template}/template.json"
  # Known before the stack is created or updated. With outputs of the stack, each update would
  # replace all keys.
  declare = "ojs-${var.stage}-declare"
  setup   = "ojs-${var.stage}-setup"
  caller  = "ojs-${var.stage}-terraform"
  declared = merge(
    { for name, body in var.pools : "pool ${name}" => {
      set  = ["PUT", "/ojs/v1/admin/pools/${replace(urlencode(name), "+", "%20")}", jsonencode(body)]
      item = "/ojs/v1/admin/pools/${replace(urlencode(name), "+", "%20")}"
    } },
    { for name, body in var.crons : "cron ${name}" => {
      set  = ["POST", "/ojs/v1/cron", jsonencode(merge(body, { name = name }))]
      item = "/ojs/v1/cron/${replace(urlencode(name), "+", "%20")}"
    } },
    { for name, body in var.rate_limits : "rate limit ${name}" => {
      set  = ["PUT", "/ojs/v1/rate-limits/${replace(urlencode(name), "+", "%20")}/override", jsonencode(body)]
      item = "/ojs/v1/rate-limits/${replace(urlencode(name), "+", "%20")}/override"
    } },
  )
}

data "aws_s3_bucket" "files" {
  bucket = var.bucket
}

# CloudFormation reads the former files if it rolls an update back. They are deleted after it.
resource "aws_s3_object" "code" {
  for_each = fileset(var.template, "*.zip")
  bucket   = var.bucket
  key      = "${var.prefix}${each.key}"
  source   = "${var.template}/${each.key}"
  lifecycle { create_before_destroy = true }
}

resource "aws_s3_object" "template" {
  bucket = var.bucket
  # A changed template has another URL, which Terraform notices.
  key    = "${var.prefix}${filesha256(local.file)}.json"
  source = local.file
  lifecycle { create_before_destroy = true }
}

resource "aws_cloudformation_stack" "jobs" {
  name         = "ojs-${var.stage}"
  template_url = "https://${data.aws_s3_bucket.files.bucket_regional_domain_name}/${aws_s3_object.template.key}"
  capabilities = ["CAPABILITY_IAM"]
  parameters = merge(var.parameters, {
    AssetBucket = var.bucket
    AssetPrefix = var.prefix
    Stage       = var.stage
  })
  depends_on = [aws_s3_object.code]
}

resource "aws_lambda_invocation" "queue" {
  for_each        = var.queues
  function_name   = local.declare
  lifecycle_scope = "CRUD"
  input = jsonencode({
    Name   = "queue ${each.key}"
    Caller = local.caller
    Set = {
      Method = "PUT"
      Path   = "/ojs/v1/queues/${replace(urlencode(each.key), "+", "%20")}/config"
      Body   = jsonencode(each.value)
    }
  })
  depends_on = [aws_cloudformation_stack.jobs]
}

resource "aws_lambda_invocation" "declared" {
  for_each        = local.declared
  function_name   = local.declare
  lifecycle_scope = "CRUD"
  input = jsonencode({
    Name     = each.key
    Caller   = local.caller
    Set      = { Method = each.value.set[0], Path = each.value.set[1], Body = each.value.set[2] }
    TakeBack = { Method = "DELETE", Path = each.value.item }
  })
  depends_on = [aws_lambda_invocation.queue]
}

resource "aws_secretsmanager_secret" "key" {
  for_each                = var.keys
  name                    = "ojs-${var.stage}/keys/${each.key}"
  recovery_window_in_days = 0
}

resource "aws_lambda_invocation" "key" {
  for_each        = var.keys
  function_name   = local.setup
  lifecycle_scope = "CRUD"
  input = jsonencode({
    ResourceType = "Custom::OjsKey"
    Name         = each.key
    Secret       = aws_secretsmanager_secret.key[each.key].arn
    Scopes       = each.value.scopes
    Queues       = each.value.queues
  })
  depends_on = [aws_cloudformation_stack.jobs]
}

output "url" {
  description = "URL of the API."
  value       = aws_cloudformation_stack.jobs.outputs["ApiUrl"]
}

output "outputs" {
  description = "All outputs of the stack."
  value       = aws_cloudformation_stack.jobs.outputs
}

output "keys" {
  description = "ARNs of the secrets with the keys, by name."
  value       = { for name, secret in aws_secretsmanager_secret.key : name => secret.arn }
}
