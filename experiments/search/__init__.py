"""Architecture search by CoDeepNEAT (Liang et al., GECCO 2019; Miikkulainen et al., *Evolving Deep Neural Networks*,
2019), written from the papers' descriptions: modules and blueprints evolve side by side, and are scored by the networks
that they are assembled to.
"""
