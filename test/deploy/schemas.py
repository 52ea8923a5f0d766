"""Checks rendered resources against the JSON schemas of Kubernetes.

schemas.py DIRECTORY reads the files that the tests wrote there (RENDERED) and checks each
resource against the oldest and the newest version that the chart is for. The types that
the tests decode into know fields and their kinds; the schemas know what is required, too.
"""

import pathlib
import sys

import kubernetes_validate as schemas
import yaml

# Kinds of the Prometheus operator and the Gateway API, which Kubernetes does not know.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "HTTPRoute"}

failed = passed = 0
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.yaml")):
    for resource in yaml.safe_load_all(file.read_text()):
        if not resource or resource["kind"] in FOREIGN:
            continue
        for version in ("1.25", schemas.latest_version()):
            try:
                schemas.validate(resource, version, strict=True)
                passed += 1
            except Exception as error:
                failed += 1
                print(f"{file.name}: {resource['kind']} {resource['metadata']['name']}, Kubernetes {version}: {str(error).splitlines()[0]}")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0 or passed < 100)
