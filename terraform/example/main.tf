variable "bucket" {
  description = "Bucket for the files of the template."
  type        = string
}

module "jobs" {
  source     = "../"
  template   = "${path.root}/../../build/template"
  bucket     = var.bucket
  stage      = "prod"
  parameters = { AlarmEmail = "ops@example.com" }

  queues = {
    mail = { max_size = 10000, rate_limit = { limit = 100, period = "PT1S" } }
  }
  pools = {
    workers = { queues = ["mail"], concurrency = 50 }
  }
  crons = {
    digest = { expression = "0 7 * * 1-5", timezone = "Europe/Berlin", type = "mail.digest", args = [], queue = "mail" }
  }
  rate_limits = {
    smtp = { concurrency = 5 }
  }
  keys = {
    shop   = { scopes = ["jobs:write", "jobs:read"], queues = ["mail"] }
    mailer = { scopes = ["work"], queues = ["mail"] }
  }
}

output "url" {
  value = module.jobs.url
}
