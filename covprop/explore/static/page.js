(function () {
  const at = (id) => document.getElementById(id);
  const page = Math.floor(Math.random() * 2 ** 52);
  const view = { index: 0, sigma: 0.25, draw: 0, n: 64, layer: null, a: null, b: null };
  const certificates = new Map(); // what was certified here, by image and σ
  let about, turn = 0, asked = null, busy = false, job = null, strip = -1;
  let now = {}; // the answers for the view shown

  function trouble(error) {
    at("trouble").hidden = !error;
    at("trouble").firstElementChild.textContent = error ? error.message : "";
  }
  const name = (k) => about.classes[k] === String(k) ? "class " + k : about.classes[k];

  // The view: every change makes a new turn; older questions are given up, here and there.
  function change(changes) {
    Object.assign(view, changes);
    turn += 1;
    if (asked) asked.abort();
    document.body.dataset.state = "busy";
    for (const id of ["pictures", "votes", "estimates", "logits", "channels"]) at(id).dataset.stale = "";
    controls();
    certificate();
    if (!busy) follow();
  }
  async function follow() {
    busy = true;
    let done = -1;
    while (done !== turn) {
      const mine = turn;
      asked = new AbortController();
      try {
        await look(asked.signal);
        trouble(null);
      } catch (error) {
        if (mine === turn) trouble(error);
      }
      done = mine;
    }
    busy = false;
    document.body.dataset.state = "ready";
  }
  async function look(signal) {
    const base = { page, turn, index: view.index, sigma: view.sigma };
    const layer = { layer: view.layer, a: view.a, b: view.b };
    const get = async (what, given) => {
      const found = await ask(what, given, { signal });
      if (found.stale || given.turn !== turn) throw new Error("outdated");
      return found;
    };
    now = { estimates: await get("estimates", { ...base, draw: view.draw, ...layer }) };
    const chosen = now.estimates.layer;
    if (chosen) [view.a, view.b] = [layer.a, layer.b] = chosen.channels;
    pictures();
    estimates();
    now.samples = await get("samples", { ...base, draw: view.draw, n: view.n, ...layer });
    votes();
    plots();
    if (!about.fault) now.calibrated = await get("calibrated", base);
    estimates();
    plots();
  }

  function controls() {
    at("index").value = view.index;
    at("sigma").value = view.sigma;
    at("slider").value = view.sigma;
    at("previous").disabled = view.index === 0;
    at("next").disabled = view.index === about.count - 1;
    const start = Math.floor(view.index / about.page) * about.page;
    if (strip < 0 || view.index < strip || view.index >= strip + about.page) thumbnails(start);
    else mark();
  }
  function mark() {
    Array.from(at("thumbnails").children).forEach((button, k) => {
      const current = strip + k === view.index;
      button.setAttribute("aria-current", String(current));
      const box = at("thumbnails");
      if (current && (button.offsetLeft < box.scrollLeft || button.offsetLeft + button.offsetWidth > box.scrollLeft + box.clientWidth))
        box.scrollLeft = button.offsetLeft - box.clientWidth / 2;
    });
  }
  async function thumbnails(start) {
    strip = start;
    at("earlier").disabled = start === 0;
    at("later").disabled = start + about.page >= about.count;
    let found;
    try { found = await ask("thumbnails", { start }); } catch (error) { trouble(error); return; }
    if (found.start !== strip) return;
    at("thumbnails").replaceChildren(...found.pictures.map((source, k) => {
      const button = make("button"), picture = make("img");
      button.type = "button";
      button.title = "image " + (start + k) + ": " + name(found.labels[k]);
      picture.src = source;
      picture.alt = button.title;
      button.append(picture);
      button.addEventListener("click", () => change({ index: start + k, draw: 0 }));
      return button;
    }));
    mark();
  }

  function pictures() {
    const found = now.estimates;
    at("clean").src = found.clean;
    at("noisy").src = found.noisy;
    at("label").textContent = name(found.label);
    delete at("pictures").dataset.stale;
  }
  function votes() {
    const { votes: counts, n, nan } = now.samples;
    const rows = counts.flatMap(([k, count]) => {
      const track = make("div", "track"), bar = make("i");
      bar.style.width = 100 * count / n + "%";
      track.append(bar);
      const title = make("div", "barname" + (k === now.estimates.label ? " true" : ""), name(k));
      title.title = name(k) + (k === now.estimates.label ? " (the label)" : "");
      return [title, track, make("div", "share", (100 * count / n).toFixed(1) + " %")];
    });
    at("votes").replaceChildren(...rows);
    const off = Math.min(50, 98 / Math.sqrt(n)).toFixed(0);
    at("votes-note").textContent =
      `Monte Carlo: shares of ${n} noisy samples that each class won, off by up to ±${off} points; `
      + `the label is in bold. ${nan ? nan + " samples gave NaN. " : ""}`
      + "The closed-form probability that the top class beats the runner-up stands below, with the estimates.";
    delete at("votes").dataset.stale;
  }

  // Bars of estimated and certified radii share one scale, so that they compare by eye.
  function scale() {
    const found = now.estimates ? Object.values(now.estimates.margins) : [];
    if (now.calibrated) found.push(now.calibrated.margin);
    const radii = found.map((m) => m.estimated_radius);
    const kept = certificates.get(key());
    if (kept) radii.push(kept.certified_radius);
    return Math.max(1e-9, ...radii.filter((r) => typeof r === "number"));
  }
  function bar(value) {
    const track = make("span", "bar"), filled = make("i");
    filled.style.width = 100 * (typeof value === "number" ? Math.max(0, value) / scale() : 1) + "%";
    track.append(filled);
    return track;
  }
  function estimates() {
    const margins = { ...now.estimates.margins };
    if (!about.fault) margins.calibrated = now.calibrated ? now.calibrated.margin : null;
    const order = ["shared", "calibrated", "linearized"].filter((e) => e in margins);
    at("estimates").replaceChildren(...order.map((e) => {
      const row = make("tr", e), m = margins[e];
      row.append(make("th", "", e));
      if (!m) {
        for (const kind of ["", "num", "num"]) row.append(make("td", kind + " dim", "…"));
        return row;
      }
      const radius = make("td", "num");
      radius.append(make("span", "value", show(m.estimated_radius, 3)), bar(m.estimated_radius));
      row.append(make("td", "", about.classes[m.top] + " vs. " + about.classes[m.runner_up]),
        make("td", "num", probability(m.probability)), radius);
      return row;
    }));
    delete at("estimates").dataset.stale;
    certificate();
  }
  function plots() {
    const { estimates: closed, samples, calibrated } = now;
    const [top, second] = closed.pair.map(name);
    plot(at("logits"), {
      shapes: { samples: samples.logits, ...closed.ellipses, ...(calibrated && { calibrated: calibrated.ellipse }) },
      dots: samples.logits.dots,
      labels: ["logit of " + top + " (top)", "logit of " + second + " (runner-up)"],
      diagonal: true,
      zoom: at("zoom").checked,
    });
    delete at("logits").dataset.stale;
    if (!closed.layer) return;
    const [a, b] = closed.layer.channels;
    [at("a").value, at("b").value] = [a, b];
    plot(at("channels"), {
      shapes: { samples: samples.layer, shared: closed.layer },
      dots: samples.layer.dots,
      labels: ["channel " + a, "channel " + b],
      zoom: at("zoom").checked,
    });
    const where = closed.layer.place;
    const layer = about.layers[view.layer];
    at("place").textContent =
      `After ${layer.name} (${layer.kind}, ${layer.channels} channels)`
      + (where.length ? `, at position (${where.join(", ")}), the middle. ` : ". ")
      + "The propagated covariance is one for all positions and images.";
    delete at("channels").dataset.stale;
  }

  // Certificates: asked for, made in the background, shown only with the view they hold for.
  const key = () => view.index + "|" + view.sigma;
  function certificate() {
    const found = certificates.get(key());
    const running = job !== null;
    at("certify").disabled = running;
    at("stop").hidden = !running;
    at("progress").hidden = !running;
    if (running) {
      at("progress").firstElementChild.value = job.progress;
      at("progress").lastElementChild.textContent =
        `image ${job.index}, σ = ${job.sigma}: ${Math.floor(100 * job.progress)} %`;
    }
    const box = at("certificate");
    if (!found) {
      box.replaceChildren(make("p", "dim", "Not certified yet for this image and σ."));
      return;
    }
    const settings = `n₀ = ${found.n0}, n = ${whole(found.n)}, α = ${found.alpha}, ${show(found.seconds, 1)} s; `
      + `p ≥ ${show(found.p_lower, 4)} from ${whole(found.count)} of ${whole(found.n)}`;
    const heading = make("div", "big"), text = make("p"), track = make("div");
    if (found.prediction < 0) {
      heading.textContent = "abstains";
      text.textContent = "No class is shown to be the most probable with these samples.";
    } else {
      heading.textContent = show(found.certified_radius, 3);
      const right = found.prediction === found.label;
      text.textContent = `${name(found.prediction)} (${right ? "correct" : "wrong"}) everywhere within this ℓ₂ distance.`;
      track.append(bar(found.certified_radius));
    }
    box.replaceChildren(heading, track, text, make("p", "dim", settings));
  }
  async function certify() {
    try {
      job = await post("certify", {
        index: view.index, sigma: view.sigma,
        n: Number(at("samples").value), alpha: Number(at("alpha").value),
      });
      certificate();
      while (job.state === "running") {
        await new Promise((resolve) => setTimeout(resolve, 250));
        job = await ask("certificate", { job: job.job });
        if (job.state === "running") certificate(); // one that was replaced tells nothing else
      }
      if (job.state === "done") certificates.set(job.index + "|" + job.sigma, job);
      trouble(job.state === "failed" ? new Error(job.error) : null);
    } catch (error) {
      trouble(error);
    }
    job = null;
    if (now.estimates) estimates(); // the bars' scale may have changed
  }

  function step(by) {
    const index = Math.min(Math.max(view.index + by, 0), about.count - 1);
    if (index !== view.index) change({ index, draw: 0 });
  }
  function listen() {
    const numeric = (id, use) => at(id).addEventListener("change", () => {
      if (at(id).value !== "") use(Number(at(id).value)); else controls();
    });
    at("previous").addEventListener("click", () => step(-1));
    at("next").addEventListener("click", () => step(1));
    at("random").addEventListener("click", () => change({ index: Math.floor(Math.random() * about.count), draw: 0 }));
    at("redraw").addEventListener("click", () => change({ draw: view.draw + 1 }));
    at("earlier").addEventListener("click", () => thumbnails(Math.max(0, strip - about.page)));
    at("later").addEventListener("click", () => thumbnails(strip + about.page));
    at("slider").addEventListener("input", () => change({ sigma: Number(at("slider").value) }));
    numeric("index", (index) => change({ index: Math.min(Math.max(Math.round(index), 0), about.count - 1), draw: 0 }));
    numeric("sigma", (sigma) => change({ sigma: Math.min(Math.max(sigma, 0.001), about.most_sigma) }));
    numeric("a", (a) => change({ a }));
    numeric("b", (b) => change({ b }));
    at("n").addEventListener("change", () => change({ n: Number(at("n").value) }));
    at("layer").addEventListener("change", () => change({ layer: Number(at("layer").value), a: null, b: null }));
    at("zoom").addEventListener("change", () => now.samples && plots());
    at("certify").addEventListener("click", certify);
    at("stop").addEventListener("click", () => job && post("stop", { job: job.job }).catch(trouble));
    document.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by && !event.target.closest("input, select") && !event.ctrlKey && !event.altKey && !event.metaKey) step(by);
    });
  }
  async function start() {
    try { about = await ask("about"); } catch (error) { trouble(error); return; }
    document.title = "explore " + about.title;
    at("title").textContent = "Explore " + about.title;
    at("lead").textContent =
      `What noise of level σ does to this network's answer, on the ${about.count} images of ${about.data}.`;
    at("trained").textContent = about.trained === null ? "" : `trained with ${about.trained}`;
    at("index").max = about.count - 1;
    at("sigma").max = about.most_sigma;
    at("slider").max = Math.min(about.most_sigma, Math.max(1, 2 * about.sigma));
    at("n").append(...about.samples.map((n) => new Option(n)));
    at("n").value = view.n = about.samples_default;
    // Where a pass takes long, so does a certificate: begin with a short one.
    if (about.samples_default < 512) at("samples").value = 1000;
    at("fault").hidden = !about.fault;
    at("fault").lastElementChild.textContent = about.fault;
    at("inside").hidden = !about.layers.length;
    for (const element of document.querySelectorAll("[data-e]")) element.hidden = Boolean(about.fault);
    at("layer").append(...about.layers.map((layer, k) => new Option(`${k + 1}. ${layer.name} · ${layer.kind}`, k)));
    if (about.layers.length) at("layer").value = view.layer = Math.floor(about.layers.length / 2);
    view.sigma = about.sigma;
    listen();
    change({});
  }
  start();
})();
