"""Stand-ins of the packages that track trainings: what our callbacks call, and as strict."""

from types import ModuleType, SimpleNamespace


class Config(dict):
    def update(self, values, allow_val_change=False):
        assert allow_val_change or not self.keys() & values.keys()
        super().update(values)


class Run:
    def __init__(self, module, arguments):
        self.module, self.arguments = module, arguments
        self.config, self.rows, self.code = Config(arguments.pop("config", {})), [], None

    def log(self, row):
        assert self.code is None
        self.rows.append(row)

    def finish(self, exit_code):
        self.code, self.module.run = exit_code, None


class Wandb(ModuleType):
    def __init__(self):
        super().__init__("wandb")
        self.run, self.runs = None, []

    def init(self, **arguments):
        self.run = Run(self, arguments)
        self.runs.append(self.run)
        return self.run


class Mlflow(ModuleType):
    """As strict about parameters as MLflow's stores."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.active = {}, None

    def active_run(self):
        return self.active

    def start_run(self):
        assert self.active is None
        data = SimpleNamespace(params={}, metrics=[], status=None)
        info = SimpleNamespace(run_id=f"run{len(self.runs)}")
        self.active = self.runs[info.run_id] = SimpleNamespace(info=info, data=data)
        return self.active

    def get_run(self, run_id):
        return self.runs[run_id]

    def log_params(self, params, run_id):
        known = self.runs[run_id].data.params
        assert not known.keys() & params.keys()
        assert all(len(value) <= 500 for value in params.values())
        known.update(params)

    def log_metrics(self, metrics, step, run_id):
        self.runs[run_id].data.metrics.append((step, metrics))

    def end_run(self, status):
        self.active.data.status, self.active = status, None


class TrialPruned(Exception):  # noqa: N818 - as Optuna calls it
    pass


class Trial:
    """Prunes at the epoch ``at``."""

    def __init__(self, at=None, directions=("MINIMIZE",)):
        self.at, self.reports = at, []
        names = [SimpleNamespace(name=name) for name in directions]
        self.study = SimpleNamespace(directions=names)

    def report(self, value, step):
        self.reports.append((step, value))

    def should_prune(self):
        return self.reports[-1][0] == self.at
