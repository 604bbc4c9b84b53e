"""A release pipeline in Airflow: six tasks, one of which waits for a person."""

import os
import time

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Param, task

SECONDS = float(os.environ.get("STAGE_SECONDS", "2"))  # what a stage of this sample takes


def slowly(text):
    print(f"{text} ...")
    time.sleep(SECONDS)
    print("done")


@task(task_display_name="build")
def build(params):
    slowly(f"compiling {params['version']}")


@task(task_display_name="unit tests")
def unit_tests():
    slowly("412 unit tests")


@task(task_display_name="integration tests")
def integration_tests(params):
    slowly("38 integration tests")
    if params["version"] == "0.0.0":
        raise RuntimeError("FAILED test_checkout: HTTP 500")


@task(task_display_name="deploy to staging")
def deploy_to_staging():
    slowly("rolling out to staging")


@task(task_display_name="deploy to production")
def deploy_to_production(params, ti):
    slowly("rolling out to production")
    answer = ti.xcom_pull("production_approval")["params_input"]
    return {"version": params["version"], "approved_by": answer["by"]}


with DAG(
    "release",
    description="Build, test, deploy to staging and, once it is approved, to production.",
    schedule=None,
    params={"version": Param("0.0.1", type="string", pattern=r"^\d+\.\d+\.\d+$", description="1.4.0, for example")},
):
    production_approval = ApprovalOperator(
        task_id="production_approval",
        task_display_name="production approval",
        subject="Deploy version {{ params.version }} to production?",
        params={
            "reason": Param("", type="string", title="Reason", maxLength=100),
            "by": Param("", type="string", title="Approved by"),
        },
        fail_on_reject=True,  # or a release that was rejected would be a success
    )
    (
        build()
        >> unit_tests()
        >> integration_tests()
        >> deploy_to_staging()
        >> production_approval
        >> deploy_to_production()
    )
