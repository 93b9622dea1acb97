# SPDX-License-Identifier: Apache-2.0
"""State that is committed, restored and synchronized, and training that begins again."""
NEEDS = ("torch",)


def objects():
    import dtrain
    from dtrain import elastic

    me = dtrain.rank()
    state = elastic.ObjectState(epoch=me, seen=[me])
    state.sync()
    assert state.epoch == 0 and state.seen == [0]
    state.epoch, state.seen = 5, [5]
    state.commit()
    state.epoch = 6
    state.seen.append(6)
    state.restore()
    assert state.epoch == 5 and state.seen == [5]
    own = elastic.ObjectState(bcast_object=lambda value: {"x": 3}, get_rank=lambda: 0, x=1)
    own.sync()
    assert own.x == 3


def news_of_hosts():
    import dtrain
    from dtrain import elastic

    state = elastic.ObjectState(x=1)
    state.commit()
    added, removed = elastic.HostUpdateResult.added, elastic.HostUpdateResult.removed
    for when, what, skip in [(1, removed, True), (2, added, False), (3, removed | added, False)]:
        # Rank 0 knows; all are interrupted.
        if dtrain.rank() == 0:
            state.on_hosts_updated(when, what)
        try:
            state.commit()
            raise AssertionError("nobody was interrupted")
        except dtrain.HostsUpdatedInterrupt as change:
            assert change.skip_sync == skip
        state.check_host_updates()


def torch_state():
    import torch

    import dtrain.torch as hvd

    me = hvd.rank()
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, me)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9))
    sampler = hvd.elastic.ElasticSampler(range(20), shuffle=False)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, batch=me)
    assert state.model is model and state.optimizer is optimizer and state.batch == me
    state.sync()
    assert state.batch == 0 and (model.weight == 0).all()
    state.commit()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        sampler.record_batch(0, 3)
        state.batch += 1
    assert (model.weight != 0).all() and len(sampler) == 10
    state.restore()
    assert state.batch == 0 and (model.weight == 0).all() and sampler.processed_num == 0
    momentum = [s["momentum_buffer"] for s in optimizer.state_dict()["state"].values()]
    assert all((m == 0).all() for m in momentum)
    other = torch.nn.Linear(2, 1)
    state.model = other
    torch.nn.init.zeros_(other.weight)
    state.restore()
    assert state.model is other and (other.weight != 0).any()


def samplers():
    import dtrain
    from dtrain.torch.elastic import ElasticSampler

    n = dtrain.size()
    for length in (0, 1, 11, 12):
        for shuffle in (False, True):
            sampler = ElasticSampler(range(length), shuffle=shuffle, seed=3)
            shares = dtrain.allgather_object(list(sampler))
            assert {len(share) for share in shares} == {len(sampler)}
            assert set(sum(shares, [])) == set(range(length))
            orders = [list(sampler.remaining_indices)]
            sampler.record_batch(0, 2)
            again = ElasticSampler(range(length), shuffle=shuffle, seed=3)
            again.load_state_dict(sampler.state_dict())
            rest = set(sum(dtrain.allgather_object(list(again)), []))
            assert rest == set(orders[0][2 * n :]), (rest, orders)
            again.set_epoch(1)
            assert len(again.remaining_indices) == length
            assert length < 10 or (again.remaining_indices != orders[0]) == shuffle


def begun_again():
    """After a change of hosts from where it was; all other exceptions are the caller's."""
    import dtrain
    from dtrain import elastic

    resets, calls = [], []

    @elastic.run
    def train(state, goal, word=None):
        assert word == "word"
        calls.append((state.step, state.uncommitted))
        while state.step < goal:
            state.step += 1
            assert dtrain.allreduce(state.step) == state.step
            if state.step == 3 and len(calls) == 1 and dtrain.rank() == 0:
                elastic.notify_hosts(1, elastic.HostUpdateResult.added)
            state.uncommitted = state.step
            state.commit()
        return state.step

    state = elastic.ObjectState(step=0, uncommitted=None)
    state.register_reset_callbacks([lambda: resets.append(dtrain.size())])
    assert train(state, 5, word="word") == 5
    assert calls == [(0, None), (3, 3)] and resets == [dtrain.size()], (calls, resets)

    @elastic.run
    def fails(state):
        raise KeyError("no such thing")

    try:
        fails(state)
        raise AssertionError("the exception was lost")
    except KeyError:
        pass


def one_rank_has_enough():
    """In the middle of a backward(), where the others wait for its gradients. The training ends as one without that."""
    import torch

    import dtrain.torch as hvd

    def trained(fails_at, word):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(5, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1))
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
        enough = set(fails_at)

        @hvd.elastic.run
        def train(state):
            while state.step < 6:
                torch.manual_seed(10 * state.step + hvd.rank())
                optimizer.zero_grad()
                hidden = model[1](model[0](torch.randn(8, 5)))
                if hvd.rank() == 1 and state.step in enough:
                    enough.discard(state.step)

                    def raises(_):
                        raise hvd.HorovodInternalError(word)

                    hidden.register_hook(raises)
                model[2](hidden).square().mean().backward()
                optimizer.step()
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()

        train(hvd.elastic.TorchState(model, optimizer, step=0))
        assert not enough or hvd.rank() != 1
        return torch.cat([each.detach().reshape(-1) for each in model.parameters()])

    right = trained([], "")
    assert torch.equal(trained([0, 3, 4], "this rank has seen enough"), right)


def one_rank_of_ddp_has_enough():
    """Torch shows the others' failure as a RuntimeError, which has crossed C++."""
    import torch
    import torch.distributed as dist

    import dtrain.torch as hvd

    dist.init_process_group("dtrain")
    second = dist.new_group()
    enough = [2]

    @hvd.elastic.run
    def train(state):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(500, 100))
        while state.step < 5:
            if hvd.rank() == 1 and state.step in enough:
                enough.clear()
                raise hvd.HorovodInternalError("this rank has seen enough")
            model(torch.ones(2, 500)).sum().backward()
            state.step += 1
            state.commit()
        return [each.grad for each in model.parameters()]

    state = hvd.elastic.ObjectState(step=0)
    assert train(state)[0].unique().tolist() == [2.0 * (state.step - 2)] and state.step == 5
    try:
        dist.all_reduce(torch.ones(1), group=second)
        raise AssertionError("that group was left")
    except ValueError as error:
        assert "make it again" in str(error), error
    third = dist.new_group()
    order = [lambda: dist.all_reduce(torch.ones(1), async_op=True),
             lambda: dist.all_reduce(torch.ones(1), group=third, async_op=True)]
    for call in [start() for start in order[:: 1 if hvd.rank() else -1]]:
        call.wait()
    dist.barrier()
    dist.destroy_process_group()


def errors_of_the_program():
    """They end run(), also behind a collective that failed and whose failure the program has handled."""
    import torch
    import torch.distributed as dist

    import dtrain.torch as hvd

    dist.init_process_group("dtrain")

    def mismatch():
        return dist.all_reduce(torch.ones(1 + hvd.rank()), async_op=True).get_future()

    def raises(words):
        raise RuntimeError(words)

    def handled():
        try:
            mismatch().wait()
        except RuntimeError as error:
            assert "MismatchError" in str(error)
            return str(error)

    texts = [("mine", lambda: raises("mine")), ("after all", lambda: handled() and raises("after all")),
             ("it says", lambda: raises(f"it says: {handled()}")),
             ("in a callback", lambda: dist.barrier(async_op=True).get_future().then(
                 lambda _: raises("in a callback")).wait())]
    for text, fails in texts:
        @hvd.elastic.run
        def train(state):
            state.calls += 1
            fails()

        state = hvd.elastic.ObjectState(calls=0)
        try:
            train(state)
            raise AssertionError("the error was lost")
        except RuntimeError as error:
            assert text in str(error) and state.calls == 1, (error, state.calls)

    # One of a collective's begins it again, through however many callbacks it has come.
    ways = [lambda: mismatch().wait(),
            lambda: mismatch().then(lambda done: done.value()).then(lambda done: done.value()).wait()]

    @hvd.elastic.run
    def goes_on(state):
        while ways:
            ways.pop()()
        return "done"

    assert goes_on(hvd.elastic.ObjectState(step=0)) == "done"
    dist.destroy_process_group()


def on_two_ranks():
    objects()
    news_of_hosts()
    torch_state()
    samplers()


def test_state_news_and_samplers(on_ranks):
    on_ranks(2, on_two_ranks)


def test_a_rank_that_raises_begins_again_with_all_others(on_ranks):
    on_ranks(3, one_rank_has_enough)
    on_ranks(3, one_rank_of_ddp_has_enough)


def test_errors_of_the_program_end_it(on_ranks):
    on_ranks(2, errors_of_the_program)


def test_samplers_and_restarts_of_three_ranks(on_ranks):
    def both():
        samplers()
        begun_again()

    on_ranks(3, both)
