"""What job records hold of a task."""

from ds_minimodel.evaluation import KINDS


def test_job_records_hold_the_keys_of_the_tasks_kind():
    added = {
        "sentence-pair": {"labels", "columns"},
        "qa": {"question_length", "stride", "answer_length", "metric"},
    }
    common = {"kind", "train", "test", "lr", "epochs", "batch_size", "max_length"}
    for kind, keys in added.items():
        recorded = KINDS[kind].config(kind=kind, train=__file__, test={}).recorded()
        assert recorded.keys() == keys | common
