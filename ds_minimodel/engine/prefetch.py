"""The batches of coming steps, made while the device works on the present one."""

import queue
import threading


class Prefetch:
    """Computes the micro-batches of coming steps in a thread, two steps ahead of the loop."""

    def __init__(self, batches, start, stop):
        self.queue, self.done = queue.Queue(maxsize=2), threading.Event()
        self.thread = threading.Thread(target=self._work, args=(batches, start, stop), daemon=True)

    def _work(self, batches, start, stop):
        for step in range(start, stop):
            try:
                item = batches(step)
            except BaseException as error:      # handed to the loop, which raises it
                item = error
            while not self.done.is_set():
                try:
                    self.queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self.done.is_set() or isinstance(item, BaseException):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __next__(self):
        item = self.queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
