"""Architecture search: genomes, what they are built to, coevolution, kills, and what is bad input."""

import io
import json
import random
import tarfile
import zipfile
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from experiments.data import load_images
from experiments.errors import ExperimentError
from experiments.journal import Journal
from experiments.search import spread
from experiments.search.build import Form, Limits, build
from experiments.search.evolution import WORST, Evolution, advance, assemble, begin
from experiments.search.fitness import ARMS, evaluate
from experiments.search.genomes import INPUT, OUTPUT, Genome, Network, Node, between, first_genome
from experiments.search.layers import INITIALISERS, BuildError, CompositeScale, Recurrent, made
from experiments.search.mutations import Rates, crossed, mutated
from experiments.search.readers import alphabets, archives
from experiments.search.search import Search, run_search
from experiments.search.space import JOIN, Choice, Range, module_space
from experiments.search.species import assigned, distance, representatives
from experiments.search.tasks import NAMES, _load, load_task
from experiments.search.training import accuracy
from experiments.settings import as_plain, load_settings
from PIL import Image
from tests.experiments.genome_rules import holds, problem
from torch import nn

HUGE = Limits(10**9, 10**12)
OFTEN = Rates(change=0.3, connection=0.5, node=0.5, crossover=0.3)


@pytest.fixture(scope="module")
def settings():
    """Each task's settings at smoke scale."""
    return as_plain(load_settings("A8", "smoke"))["tasks"]


def evolution_of(settings, name, **changes):
    return Evolution.of(settings[name] | changes, seed="3")


def random_networks(evolution, generations, seed=0):
    """Yield the networks of generations whose fitness is drawn, with many mutations."""
    evolution = replace(
        evolution,
        blueprints=replace(evolution.blueprints, rates=OFTEN),
        modules=replace(evolution.modules, rates=OFTEN),
    )
    state, draw = begin(evolution), random.Random(seed)
    for _ in range(generations):
        networks = assemble(evolution, state)
        yield from networks
        state = advance(evolution, state, networks, [draw.random() for _ in networks])


# genomes


@pytest.mark.parametrize("name", NAMES)
def test_genomes_and_networks_come_back_from_json(settings, name):
    for network in random_networks(evolution_of(settings, name), 6):
        document = json.loads(json.dumps(network.to_json()))
        assert Network.from_json(document) == network
        assert Genome.from_json(document["blueprint"]) == network.blueprint


@pytest.mark.parametrize("document", [{}, {"nodes": [], "edges": [["a"]], "genes": {}}, {"blueprint": 1, "modules": 2}])
def test_what_is_no_genome_is_named(document):
    with pytest.raises(ExperimentError, match="no genome"):
        Genome.from_json(document)
    with pytest.raises(ExperimentError, match="no network"):
        Network.from_json(document)


@pytest.mark.parametrize("name", ["mnist", "text"])
def test_hundreds_of_mutations_give_valid_genomes_and_count_what_is_refused(settings, name):
    space, draw, refused = module_space(settings[name]["space"]), random.Random(1), Counter()
    genome, kinds = first_genome(space, 1, draw), set()
    for count in range(300):
        genome = mutated(genome if count % 60 else first_genome(space, 1, draw), space, OFTEN, draw, refused)
        assert problem(genome, space) == ""
        kinds |= {node.kind for node in genome.nodes}
    assert kinds == set(space.kinds)
    assert refused["too many nodes"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_one_hyperparameter_that_shows_is_changed_where_nothing_else_is(settings, name):
    """Hyperparameters of one value, and joins of a single source, are not what is changed."""
    space, draw, none = module_space(settings[name]["space"]), random.Random(0), Rates(0, 0, 0, 0)
    for length in (1, 2, 3):
        for _ in range(40):
            genome = first_genome(space, length, draw)
            child = mutated(genome, space, none, draw, Counter())
            pairs = list(zip(genome.nodes, child.nodes, strict=True))
            names = [key for old, new in pairs for key in old.genes if old.genes[key] != new.genes[key]]
            free = any(node.kind not in ("max_pool1d", "max_pool2d") for node in genome.nodes)
            assert len(names) == free or names == []  # a whole number may be rounded to what it was
            assert JOIN not in names
            assert "regularizer" not in names or name in ("adult", "text", "transfer")
            assert child.genes == genome.genes


def test_what_was_not_tried_is_no_elite(settings):
    """Of modules that no network has, none goes on while there are others, however good their species is."""
    evolution = evolution_of(settings, "adult", evaluations=1)
    evolution = replace(evolution, modules=replace(evolution.modules, size=12, elitism=0.3))
    state = begin(evolution)
    networks = assemble(evolution, state)
    tried = [module for network in networks for module in network.modules.values()]
    following = advance(evolution, state, networks, [0.1] * len(networks))
    gone_on = [module for module in following.modules.genomes if module in state.modules.genomes]
    by_species = [state.modules.members(species) for species in (0, 1)]
    wanted = [max(1, round(0.3 * len(members))) for members in by_species]
    for members, count in zip(by_species, wanted, strict=True):
        known = [state.modules.genomes[index] for index in members if state.modules.genomes[index] in tried]
        kept = [module for module in gone_on if module in [state.modules.genomes[index] for index in members]]
        assert len([module for module in kept if module in known]) >= min(count, len(known))


def test_a_full_graph_has_no_connection_free(settings):
    space, draw, refused = module_space(settings["adult"]["space"]), random.Random(0), Counter()
    genome = first_genome(space, 2, draw)
    for _ in range(60):
        genome = mutated(genome, space, Rates(0, 1, 0, 0), draw, refused)
    assert len(genome.edges) == 6  # of four ends
    assert refused["no connection is free"] > 0


def test_what_is_wrong_with_a_genome_is_told(settings):
    space = module_space(settings["adult"]["space"])
    good = first_genome(space, 2, random.Random(0))
    one, two = good.nodes
    wide = Node(one.mark, "dense", dict.fromkeys(space.kinds["dense"], 10**6))
    for broken, reason in (
        (replace(good, nodes=(one, one)), "a node or an edge comes twice"),
        (replace(good, edges=(*good.edges, (two.mark, "elsewhere"))), "an edge leads to no node"),
        (replace(good, edges=(*good.edges, (two.mark, one.mark))), "the edges form a circle"),
        (replace(good, edges=((INPUT, one.mark), (one.mark, OUTPUT), (INPUT, two.mark))), "a node lies on no way"),
        (replace(good, nodes=(wide, two)), "hyperparameters of dense out of range"),
        (replace(good, genes={}), "hyperparameters out of range"),
    ):
        assert problem(broken, space).startswith(reason)
    assert problem(good, replace(space, largest=1)) == "too many nodes"


def test_a_child_has_the_fitter_parents_graph_and_values_of_both(settings):
    space, draw = module_space(settings["adult"]["space"]), random.Random(0)
    other = first_genome(space, 1, draw)
    fitter = between(first_genome(space, 1, draw), (INPUT, other.nodes[0].mark), ("dropout", {}))
    children = [crossed(fitter, other, draw) for _ in range(30)]
    assert {child.edges for child in children} == {fitter.edges}
    assert {str(child.nodes[0]) for child in children} == {str(fitter.nodes[0]), str(other.nodes[0])}


def test_ranges_stay_within_their_bounds():
    draw = random.Random(0)
    for gene in (Range(1e-9, 1e-3, log=True), Range(16, 96, whole=True), Range(0.0, 0.7), Choice((1, 3))):
        value = gene.drawn(draw)
        for _ in range(200):
            assert holds(gene, value)
            assert 0 <= gene.distance(value, gene.drawn(draw)) <= 1
            value = gene.changed(value, draw)
    assert Choice((1,)).changed(1, draw) == 1


def test_species_are_assigned_by_distance(settings):
    space, draw = module_space(settings["text"]["space"]), random.Random(0)
    genomes = [first_genome(space, draw.randint(1, 3), draw) for _ in range(12)]
    for one in genomes:
        assert distance(one, one, space) == 0
        for other in genomes:
            assert distance(one, other, space) == pytest.approx(distance(other, one, space))
    founders = representatives(genomes, 4, space, draw)
    assert set(assigned(genomes, founders, space)) == {0, 1, 2, 3}
    assert set(assigned(genomes[:4], [genomes[0]] * 4, space)) == {0, 1, 2, 3}  # none is left empty


# what they are built to


@pytest.mark.parametrize("name", NAMES)
def test_every_random_net_builds_and_runs_forward_and_backward(settings, name, tmp_path):
    task = load_task(name, "synthetic", settings[name], str(tmp_path))
    evolution, refused = evolution_of(settings, name, preserved=4), Counter()
    networks = list(random_networks(evolution, 14))
    for network in networks:
        try:
            net = build(network, task.form, HUGE)
        except BuildError as error:
            refused[str(error)] += 1
            continue
        logits = net(task.x[:3])
        assert logits.shape == (3, sum(task.form.heads))
        (logits.square().mean() + net.penalty()).backward()
        assert logits.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
    assert set(refused) <= {"max_pool2d of a single position", "max_pool1d of a single position"}
    assert sum(refused.values()) < 2 * len(networks) / 3  # many mutations, and no selection


@pytest.mark.parametrize(
    ("how", "shape"), [("add", (5, 2, 3)), ("weighted_sum", (5, 2, 3)), ("concatenate", (9, 2, 3))]
)
def test_branches_of_any_shape_are_joined(how, shape):
    join = CompositeScale([(4, 6, 3), (5, 2, 7)], how)
    joined = join(torch.ones(2, 4, 6, 3), torch.ones(2, 5, 2, 7))
    assert join.shape == shape == joined.shape[1:]
    if how != "concatenate":
        projected = join.projections[0](torch.ones(2, 4, 2, 3))
        torch.testing.assert_close(joined, projected + 1)  # weights of a weighted sum are 1 at the start


@pytest.mark.parametrize("init", INITIALISERS)
def test_layers_are_drawn_as_evolution_chose(init):
    torch.manual_seed(0)
    genes = {"units": 300, "init": init, "activation": "relu", "kernel": 3, JOIN: "add"}
    weight = made("conv1d", genes, (100, 9)).kernels[0].detach()
    variance = 2 / 300 if init.startswith("he") else 2 / (300 + 900)
    assert float(weight.var()) == pytest.approx(variance, rel=0.02)
    assert (float(weight.abs().max()) < (3 * variance) ** 0.5 + 1e-6) == init.endswith("uniform")


@pytest.mark.slow
def test_recurrent_layers_start_as_keras_has_them():
    cell = Recurrent(nn.LSTM, 5, 4, "glorot_normal").cell
    assert cell.bias_ih_l0.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 8
    torch.testing.assert_close(cell.weight_hh_l0.T @ cell.weight_hh_l0, torch.eye(4))
    from tests.frontends.keras_models import keras  # on PyTorch; skips where there is none

    theirs = keras.initializers.Orthogonal(seed=0)((4, 16))  # for all four gates
    torch.testing.assert_close(theirs @ theirs.T, torch.eye(4))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(Limits(50, 10**9), "more weights than are allowed"), (Limits(10**9, 30), "more work than is allowed")],
)
def test_what_is_too_large_is_not_built(limits, reason):
    form = Form((8,), (2,))  # 8 · 6 weights and 6 biases
    with pytest.raises(BuildError, match=reason):
        build(dense_network(), form, limits)
    assert build(dense_network(), form, HUGE)


def dense_network(rate=1e-3, kind="dense", **genes):
    """Return a network of one layer."""
    values = {"units": 6, "init": "he_normal", "regularizer": "l2", "factor": 1e-5, "activation": "relu"} | genes
    chain = ((INPUT, "a"), ("a", OUTPUT))
    module = Genome((Node("a", kind, {JOIN: "add"} | values),), chain, {JOIN: "add"})
    blueprint = Genome((Node("a", "node", {JOIN: "add", "species": 0}),), chain, {JOIN: "add", "rate": rate})
    return Network(blueprint, {0: module})


def test_heads_of_several_alphabets_answer_for_their_own(settings, tmp_path):
    task = load_task("omniglot", "synthetic", settings["omniglot"], str(tmp_path))
    assert task.head_of().tolist() == [0, 0, 0, 1, 1]
    net = build(dense_network(), task.form, HUGE)
    with torch.no_grad():
        for head in net.heads:
            head.weight.zero_()
        net.heads[1].bias.fill_(100.0)  # would win everywhere, were all heads asked
        net.heads[1].bias[0] += 1
    right = [float((task.valid_y[task.valid_y < 3] == 0).float().mean()), 0.5]
    found = float((task.valid_y[task.valid_y > 2] == 3).float().mean())
    assert accuracy(net, task, "valid") == pytest.approx((right[0] + found) / 2)


# fitness


def score(network, settings, arm="evolved", name="adult", **train):
    told = settings[name] | {"train": settings[name]["train"] | train}
    return evaluate(network.to_json(), arm, name, told, "synthetic", "unused", 0)


def test_both_arms_score_the_same_genome_and_differ_in_its_weights_alone(settings):
    network = dense_network(rate=0.01)
    evolved, autoinit = (score(network, settings, arm, epochs=3) for arm in ("evolved", "autoinit"))
    assert evolved["reason"] == autoinit["reason"] == ""
    assert evolved != autoinit
    assert evolved == score(network, settings, epochs=3)
    assert autoinit == score(dense_network(rate=0.01, init="glorot_uniform"), settings, "autoinit", epochs=3)


def test_what_is_untouched_is_kept_by_all_arms_but_one_and_taken_for_unit_signals_by_another(settings, monkeypatch):
    rows, first = [], []

    def noted(net, *given):
        rows.append(net.embedding.weight.detach().clone())
        first.append(
            float(next(p for n, p in net.named_parameters() if p.ndim > 1 and "embedding" not in n).detach().std())
        )

    monkeypatch.setattr("experiments.search.fitness.train", noted)
    for arm in ARMS:
        score(dense_network(), settings, arm, "text")
    evolved, kept, planned, assumed = rows
    assert evolved.equal(kept)
    assert evolved.equal(assumed)
    assert float(planned.std()) > 10 * float(evolved.std())
    assert first[1] > 10 * first[3]
    assert first[2] == first[3]


@pytest.mark.parametrize(
    ("network", "train", "reason"),
    [
        (dense_network(kind="max_pool2d"), {}, "not built: max_pool2d on 0 axes of positions"),
        (dense_network(rate=1e30), {"epochs": 20}, "diverged in epoch"),
        (dense_network(units=10**5), {}, "not built: more weights than are allowed"),
        (dense_network(), {"batch": -1}, "not trained: RuntimeError: split"),
    ],
)
def test_what_fails_has_the_worst_fitness_and_the_reason(settings, network, train, reason):
    settings = {"adult": settings["adult"] | {"limits": {"weights": 10**6, "work": 10**9}}}
    found = score(network, settings, **train)
    assert found["reason"].startswith(reason)
    assert found["fitness"] == found["test"] == WORST


def test_the_test_chooses_nothing(settings, monkeypatch):
    """Outputs that are not finite on the test alone leave the fitness as it is."""
    task = load_task("adult", "synthetic", settings["adult"], "unused")
    spoiled = task.test_x.clone()
    spoiled[0, 0] = torch.inf
    monkeypatch.setattr("experiments.search.fitness.load_task", lambda *given: replace(task, test_x=spoiled))
    found = score(dense_network(), settings)
    monkeypatch.undo()
    assert found == score(dense_network(), settings) | {"test": WORST}


def test_what_the_initialisation_cannot_do_is_a_reason(settings, monkeypatch):
    def fails(*args, **options):
        raise ArithmeticError("no\nmore")

    monkeypatch.setattr("experiments.search.fitness.planned", fails)
    assert score(dense_network(), settings, "autoinit")["reason"] == "not initialised: ArithmeticError: no"


def test_an_unknown_arm_or_task_is_named(settings):
    with pytest.raises(ExperimentError, match="no arm 'evolve'; did you mean 'evolved'"):
        score(dense_network(), settings, "evolve")
    with pytest.raises(ExperimentError, match="no task 'mnits'"):
        load_task("mnits", "synthetic", settings["mnist"], "unused")
    with pytest.raises(ExperimentError, match="layers: no conv3d; known: conv1d"):
        module_space(settings["mnist"]["space"] | {"layers": ["conv3d"]})


# searches


def quick(jobs):
    """Score networks by their genomes alone; some fail."""
    for index, job in enumerate(jobs):
        value = random.Random(json.dumps(job.network) + str(job.seed)).random()
        failed = "by chance" if value < 0.2 else ""
        yield index, {"fitness": WORST if failed else value, "test": value, "reason": failed}, 0.0


def search_of(settings, name="text", arm="evolved", **changes):
    return Search(name, arm, 0, settings[name] | {"generations": 4, "evaluations": 2} | changes, "synthetic", "unused")


def journal_in(folder):
    return Journal(folder, {"experiment": "A8", "scale": "test"})


def test_the_same_seed_gives_the_same_search(settings, tmp_path):
    search = search_of(settings)
    one, two = (run_search(search, journal_in(tmp_path / part), evaluate=quick) for part in "ab")
    other = run_search(replace(search, seed=1), journal_in(tmp_path / "c"), evaluate=quick)
    assert one == two
    assert one.generations != other.generations
    assert [row["networks"] for row in one.generations] == [6] * 4
    assert sum(row["failed"].get("by chance", 0) for row in one.generations) > 0
    assert [row["best"] for row in one.generations] == sorted(row["best"] for row in one.generations)


def test_the_order_in_which_networks_finish_does_not_matter(settings, tmp_path):
    def backwards(jobs):
        return reversed(list(quick(jobs)))

    forth, back = (
        run_search(search_of(settings), journal_in(tmp_path / how.__name__), evaluate=how) for how in (quick, backwards)
    )
    assert forth == back


def test_a_search_killed_at_any_moment_comes_to_the_same(settings, tmp_path):
    search, journal = search_of(settings), journal_in(tmp_path)
    whole = run_search(search, journal, evaluate=quick)
    content = journal.path.read_bytes()
    lines = content.splitlines(keepends=True)
    assert len(lines) == 24
    for count in range(len(lines)):
        for more in (b"", lines[count][: len(lines[count]) // 2]):
            journal.path.write_bytes(b"".join(lines[:count]) + more)
            asked = []

            def noted(jobs, asked=asked):
                asked += jobs
                return quick(jobs)

            assert run_search(search, journal_in(tmp_path), evaluate=noted) == whole
            assert len(asked) == len(lines) - count
            assert journal.path.read_bytes() == content


def test_a_real_search_goes_on_after_a_kill(settings, tmp_path):
    search = search_of(settings, "adult", generations=2, evaluations=1)
    whole = run_search(search, journal_in(tmp_path / "whole"))

    def killed(jobs):
        for count, done in enumerate(spread.evaluated(jobs)):
            if count == 2:
                raise KeyboardInterrupt
            yield done

    with pytest.raises(KeyboardInterrupt):
        run_search(search, journal_in(tmp_path / "cut"), evaluate=killed)
    said = []
    assert run_search(search, journal_in(tmp_path / "cut"), say=said.append) == whole
    assert len(said) == 3  # a head, and a line for each generation
    assert said[1].split()[0] == "0"


def test_both_arms_begin_with_the_same_networks_and_seeds(settings):
    one, two = (search_of(settings, arm=arm) for arm in ("evolved", "autoinit"))
    evolutions = [Evolution.of(search.settings, str(search.seed)) for search in (one, two)]
    first = [assemble(each, begin(each)) for each in evolutions]
    assert first[0] == first[1]
    jobs = [search.job(first[0][0], 0, 0) for search in (one, two)]
    assert jobs[0]._replace(arm="") == jobs[1]._replace(arm="")


def test_sizes_species_and_elites_are_kept(settings):
    evolution, draw = evolution_of(settings, "text", preserved=2), random.Random(0)
    state = begin(evolution)
    for _ in range(5):
        networks = assemble(evolution, state)
        fitness = [draw.random() for _ in networks]
        following = advance(evolution, state, networks, fitness)
        assert len(following.modules.genomes) == 5
        assert set(following.modules.species) == {0, 1}
        assert len(following.blueprints.genomes) == 3
        assert len(following.preserved) == 2
        assert following.preserved[0].fitness >= max(fitness)
        state = following


def test_a_genome_has_the_mean_fitness_of_its_networks_and_the_best_goes_on(settings):
    evolution = evolution_of(settings, "adult", evaluations=2)
    state = begin(evolution)
    networks = assemble(evolution, state)
    best = state.blueprints.genomes[2]
    fitness = [0.9 if network.blueprint == best else 0.1 for network in networks]
    fitness[0] = 1.0  # the best network, whose blueprint has 0.55 on average
    following = advance(evolution, state, networks, fitness)
    assert following.blueprints.genomes[0] == best
    assert following.preserved[0].network == networks[0]


def test_ray_gives_the_same_search(settings, tmp_path):
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    search = search_of(settings, "adult", generations=2, evaluations=1)
    local = run_search(search, journal_in(tmp_path / "local"))
    try:
        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
        spread_out = run_search(search, journal_in(tmp_path / "ray"))
    finally:
        ray.shutdown()
    assert spread_out == local


# data


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "mnist/train.parquet"),
        ("omniglot", "omniglot/images_background*.zip"),
        ("adult", "adult/adult.names"),
        ("text", "polarity/review_polarity.tar.gz"),
        ("transfer", "cifar10/train.parquet"),
    ],
)
def test_a_folder_without_a_tasks_files_is_named(name, file, tmp_path):
    told = as_plain(load_settings("A8", "laptop"))["tasks"][name]
    with pytest.raises(ExperimentError) as raised:
        load_task(name, str(tmp_path), told, str(tmp_path))
    for part in (f"task {name}", file, "no such file", "the data's folder is to hold mnist"):
        assert part in str(raised.value)
    with pytest.raises(ExperimentError, match=f"task {name}: no folder nowhere; give one that holds mnist"):
        load_task(name, "nowhere", told, str(tmp_path))


def test_files_of_another_layout_are_named(tmp_path):
    told = as_plain(load_settings("A8", "laptop"))["tasks"]
    for name, file, content in (
        ("adult", "adult/adult-train.csv", "1, 2, 3\n"),
        ("omniglot", "omniglot/images_background_1.zip", "no zip"),
        ("text", "polarity/review_polarity.tar.gz", "no tar"),
    ):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(content)
        (tmp_path / "adult" / "adult.names").write_text("age: continuous.\n")
        with pytest.raises(ExperimentError, match=f"task {name}: .*{file.split('/')[1].split('.')[0]}"):
            load_task(name, str(tmp_path), told[name], str(tmp_path))


def test_census_rows_are_read(tmp_path):
    folder = tmp_path / "adult"
    folder.mkdir()
    (folder / "adult.names").write_text("| comment: here\n>50K, <=50K.\n\nage: continuous.\nwork-class: A, B-c.\n")
    rows = [f"{age}, {('A', 'B-c', '?')[age % 3]}, {'>50K' if age % 2 else '<=50K'}" for age in range(100)]
    (folder / "adult-train.csv").write_text("\n".join(rows[:60]) + "\n")
    (folder / "adult-test.csv").write_text("\n".join(f"{row}." for row in rows[60:]) + "\n\n")
    told = {"data": {"train": 50, "valid": 20, "test": None}}
    task = load_task("adult", str(tmp_path), told, "unused")
    assert (task.x.shape, len(task.valid_y), len(task.test_y)) == ((50, 3), 20, 20)
    assert float(task.x.square().mean()) == pytest.approx(1)
    assert abs(float(task.x[:, 0].mean())) < 1e-5
    assert {tuple((row[1:] > 0).tolist()) for row in task.x} == {(True, False), (False, True), (False, False)}
    assert 0.2 < float(task.y.float().mean()) < 0.8


def test_drawings_are_read_by_alphabet(tmp_path):
    (tmp_path / "omniglot").mkdir()
    with zipfile.ZipFile(tmp_path / "omniglot" / "images_background_small1.zip", "w") as archive:
        for alphabet, characters in (("Latin", 3), ("Greek", 2)):
            for character in range(characters):
                for drawing in range(20):
                    pixels = np.full((21, 21), 255, dtype=np.uint8)
                    pixels[character : character + 2] = drawing
                    with archive.open(f"small1/{alphabet}/character{character}/{drawing:02}.png", "w") as file:
                        Image.fromarray(pixels).save(file, "png")
    told = {"data": {"alphabets": 2, "side": 7}}
    task = load_task("omniglot", str(tmp_path), told, "unused")
    assert task.form.heads == (2, 3)
    assert (len(task.y), len(task.valid_y), len(task.test_y)) == (50, 20, 30)
    assert task.x.shape == (50, 1, 7, 7)
    assert float(task.x.max()) > -float(task.x.min())  # ink is bright
    with pytest.raises(ExperimentError, match="2 alphabets where 3 are wanted"):
        load_task("omniglot", str(tmp_path), {"data": {"alphabets": 3, "side": 7}}, "unused")


def test_a_drawing_in_two_archives_is_taken_once(tmp_path):
    """Every drawing is another one, and none is in two parts."""
    (tmp_path / "omniglot").mkdir()
    draw = np.random.default_rng(0)
    drawn = [draw.integers(0, 256, (7, 7), dtype=np.uint8) for _ in range(20)]
    for name in ("images_background_small1", "images_background_small2", "images_evaluation"):
        with zipfile.ZipFile(tmp_path / "omniglot" / f"{name}.zip", "w") as archive:
            for index, pixels in enumerate(drawn):
                alphabet = "Futurama" if name == "images_evaluation" else "Greek"
                with archive.open(f"{name}/{alphabet}/character01/{index:02}.png", "w") as file:
                    Image.fromarray(pixels).save(file, "png")
    examples, heads = alphabets(archives(tmp_path / "omniglot"), 2, 7)
    assert heads == (1, 1)
    for label in (0, 1):
        parts = ((examples.x, examples.y), (examples.valid_x, examples.valid_y), (examples.test_x, examples.test_y))
        mine = [{row.numpy().tobytes() for row in x[y == label]} for x, y in parts]
        assert [len(part) for part in mine] == [10, 4, 6]
        assert len(set.union(*mine)) == 20


def test_texts_are_read_as_their_last_words(tmp_path):
    (tmp_path / "polarity").mkdir()
    with tarfile.open(tmp_path / "polarity" / "review_polarity.tar.gz", "w:gz") as archive:
        for index in range(20):
            words = f"{'good' if index % 2 else 'bad'} {'it ' * (index + 1)}ends, rare{'abcdefghijklmnopqrst'[index]} !"
            member = tarfile.TarInfo(f"texts/{'pos' if index % 2 else 'neg'}/{index}.txt")
            member.size = len(words)
            archive.addfile(member, io.BytesIO(words.encode()))
    told = {"data": {"vocabulary": 6, "length": 5, "embedding": 3}}
    task = load_task("text", str(tmp_path), told, "unused")
    assert (task.x.shape, len(task.valid_y), len(task.test_y)) == ((12, 5), 4, 4)
    everything = torch.cat([task.x, task.valid_x, task.test_x])
    assert int(everything.max()) <= 5
    assert (everything[:, -2:] == torch.tensor([3, 1])).all()  # the second most frequent word, and one that is unknown
    assert int((everything == 0).sum()) == 1  # in front of the shortest text, of four words
    assert sorted(torch.cat([task.y, task.valid_y, task.test_y]).tolist()) == [0] * 10 + [1] * 10


def test_digits_are_grey_and_end_with_those_to_choose_by(tmp_path, monkeypatch):
    folder = tmp_path / "mnist"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.parquet").touch()
    drawn = load_images("synthetic", 30, 10, 8)
    asked = []
    monkeypatch.setattr("experiments.search.readers.load_images", lambda *given: asked.append(given) or drawn)
    told = {"data": {"train": 20, "valid": 10, "test": 10, "side": 8}}
    task = load_task("mnist", str(tmp_path), told, "unused")
    assert asked == [(str(folder), 30, 10, 8)]
    assert (task.x.shape, len(task.valid_x), len(task.test_x)) == ((20, 1, 8, 8), 10, 10)
    assert task.valid_y.equal(drawn.y[20:])


@pytest.mark.slow
def test_the_embedding_is_computed_once_for_a_run(tmp_path, monkeypatch):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.parquet").touch()
    drawn = load_images("synthetic", 100, 30, 16)
    asked = []
    monkeypatch.setattr("experiments.search.transfer.load_images", lambda *given: asked.append(given) or drawn)
    how = {"train": 100, "test": 30, "side": 16, "valid": 10, "growth": 2, "layers": 1, "epochs": 1, "batch": 50}
    tasks = []
    for _ in range(2):
        tasks.append(load_task("transfer", str(tmp_path), {"data": how | {"rate": 0.01}}, str(tmp_path / "kept")))
        _load.cache_clear()  # as another process would find it
    assert len(asked) == 1
    assert tasks[0].x.equal(tasks[1].x)
    assert tasks[0].form.heads == (4,)
    assert (len(tasks[0].x), len(tasks[0].valid_y), len(tasks[0].test_y)) == (30, 10, 12)
    assert float(torch.cat([tasks[0].x, tasks[0].valid_x]).mean()) == pytest.approx(0, abs=1e-4)
